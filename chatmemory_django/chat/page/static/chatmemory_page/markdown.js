// Conversion of Markdown to elements. Texts only become text nodes, so messages cannot inject anything: HTML stays text,
// no image is fetched, and links can only lead to http and https URLs.
//
// Everything takes time in proportion to the text: a pattern never has two ways to match the same characters, and what
// it did not find once is not looked for again.

import {element} from "./dom.js";
import {highlighted} from "./highlight.js";

const MAX_DEPTH = 6;
const MAX_INLINE = 20_000; // characters; longer texts are shown unformatted

const FENCE = /^ {0,3}(`{3,}(?!`)|~{3,}(?!~))([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])\s+(.*)$/s;

/** Return the blocks of *source*. */
export function markdown(source, depth = 0) {
    const made = document.createDocumentFragment();
    const lines = source.replace(/\r\n?/g, "\n").split("\n");
    let at = 0;
    while (at < lines.length) {
        const line = lines[at];
        const [, fence, info] = FENCE.exec(line) ?? [];
        const heading = HEADING.exec(line);
        if (!line.trim()) {
            at += 1;
        } else if (fence) {
            const code = taken(lines, at + 1, other => !other.trim().startsWith(fence));
            made.append(codeBlock(code.join("\n"), /^[\w+#.-]*/.exec(info.trim())[0]));
            at += code.length + 2;
        } else if (heading) {
            // Below the levels of the page's own headings.
            made.append(element(`h${Math.min(6, heading[1].length + 3)}`, {}, inline(titleOf(line))));
            at += 1;
        } else if (RULE.test(line)) {
            made.append(element("hr"));
            at += 1;
        } else if (QUOTE.test(line) && depth < MAX_DEPTH) {
            const quoted = taken(lines, at, other => QUOTE.test(other));
            made.append(element("blockquote", {}, markdown(quoted.map(each => each.replace(QUOTE, "")).join("\n"), depth + 1)));
            at += quoted.length;
        } else if (ITEM.test(line) && depth < MAX_DEPTH) {
            at = list(made, lines, at, depth);
        } else if (line.includes("|") && areDelimiters(lines[at + 1] ?? "")) {
            const rows = taken(lines, at, other => other.includes("|"));
            made.append(table(rows));
            at += rows.length;
        } else {
            const paragraph = [line, ...taken(lines, at + 1, other => other.trim() && !beginsBlock(other))];
            made.append(element("p", {}, inline(paragraph.map(each => each.trim()).join("\n"))));
            at += paragraph.length;
        }
    }
    return made;
}

function beginsBlock(line) {
    return FENCE.test(line) || HEADING.test(line) || QUOTE.test(line) || ITEM.test(line) || RULE.test(line);
}

/** Return the lines from *begin* on for which *wanted* is true. */
function taken(lines, begin, wanted) {
    let end = begin;
    while (end < lines.length && wanted(lines[end])) end += 1;
    return lines.slice(begin, end);
}

/** Return the text of a heading, without the marks around it. */
function titleOf(line) {
    return line.trim().replace(/^#+/, "").replace(/(?<!\S)#+$/, "").trim();
}

function codeBlock(code, language) {
    // It may be wider than the page; with the focus, it can be scrolled by keyboard.
    return element("pre", {tabindex: 0, "data-language": language || null}, element("code", {}, highlighted(code, language)));
}

/** Append the list that begins at line *at*, and return the line after it. */
function list(made, lines, at, depth) {
    const [, indent, marker] = ITEM.exec(lines[at]);
    const isOrdered = /\d/.test(marker);
    const start = isOrdered && Number.parseInt(marker) !== 1 ? Number.parseInt(marker) : null;
    const items = element(isOrdered ? "ol" : "ul", {start});
    while (at < lines.length) {
        const match = ITEM.exec(lines[at]);
        if (!match || match[1].length > indent.length + 1 || /\d/.test(match[2]) !== isOrdered || RULE.test(lines[at])) break;
        const content = [match[3]];
        const inner = indent.length + 2;
        at += 1;
        while (at < lines.length) {
            const line = lines[at];
            const isInside = line.search(/\S/) >= inner;
            const isLazy = line.trim() && !beginsBlock(line) && lines[at - 1].trim();
            const goesOn = !line.trim() && (lines[at + 1] ?? "").search(/\S/) >= inner;
            if (!isInside && !isLazy && !goesOn) break;
            content.push(isInside ? line.slice(inner) : line);
            at += 1;
        }
        const blocks = markdown(content.join("\n"), depth + 1);
        const isTight = blocks.firstChild?.nodeName === "P" && content.every(line => line.trim());
        if (isTight) blocks.firstChild.replaceWith(...blocks.firstChild.childNodes);
        items.append(element("li", {}, blocks));
        if (!(lines[at] ?? "x").trim() && ITEM.test(lines[at + 1] ?? "")) at += 1;
    }
    made.append(items);
    return at;
}

/** Whether *line* separates the head of a table from its rows. */
function areDelimiters(line) {
    const cells = line.split("|").map(cell => cell.trim());
    const last = cells.pop();
    if (!cells[0]) cells.shift();
    return cells.length > 0 && cells.every(cell => /^:?-+:?$/.test(cell)) && /^:?-*:?$/.test(last);
}

/** Return an element with *children*, of which there may be more than a function can have arguments. */
function containing(tag, children) {
    const made = element(tag);
    for (const child of children) made.append(child);
    return made;
}

function table(lines) {
    const cells = line => line.trim().replace(/^\||\|$/g, "").split("|").map(cell => cell.trim());
    const [head, , ...rows] = lines.map(cells);
    // Rows are not filled up to the length of the head: a long head and many rows would make a million cells.
    const row = (tag, texts) => containing("tr", texts.slice(0, head.length).map(cell => element(tag, {}, inline(cell))));
    const made = element("table", {}, element("thead", {}, row("th", head)), containing("tbody", rows.map(texts => row("td", texts))));
    return element("div", {class: "wide", tabindex: 0}, made);
}

const INLINE = new RegExp([
    /\\([!-/:-@[-`{-~])/, // escaped character
    /(?<!(?<!\\)`)(`+)(?!`)([^\n]*?[^`\n])\2(?!`)/, // code
    /\*\*(?=\S)((?:[^*\n]|\*(?!\*))+)(?<=\S)\*\*|\*(?=[^\s*])([^*\n]+)(?<=\S)\*/, // strong, em
    /(?<!\w)_(?=[^\s_])([^_\n]+)(?<=\S)_(?!\w)/, // em
    /~~(?=\S)((?:[^~\n]|~(?!~))+)(?<=\S)~~/, // deleted
    /!?\[([^\][\n]{1,500})\]\(\s*<?([^\s()<>]{1,2000}(?:\([^\s()<>]*\))?)>?(?:\s+"[^"\n]*")?\s*\)/, // link
    /(https?:\/\/[^\s<>"'`]{1,2000}[^\s<>"'`.,;:!?)\]*_])/, // URL
    /(\n)/,
].map(each => each.source).join("|"), "gu");

/** Return the texts and elements of one line or paragraph. */
function inline(source, depth = 0) {
    const made = document.createDocumentFragment();
    if (source.length > MAX_INLINE || depth > MAX_DEPTH) {
        made.append(source);
        return made;
    }
    let end = 0;
    for (const match of source.matchAll(INLINE)) {
        const [whole, escaped, , code, strong, em, underlined, deleted, label, target, address, newline] = match;
        made.append(source.slice(end, match.index));
        end = match.index + whole.length;
        if (escaped) made.append(escaped);
        else if (code) made.append(element("code", {}, code));
        else if (strong) made.append(element("strong", {}, inline(strong, depth + 1)));
        else if (em ?? underlined) made.append(element("em", {}, inline(em ?? underlined, depth + 1)));
        else if (deleted) made.append(element("del", {}, inline(deleted, depth + 1)));
        else if (label) made.append(link(target, inline(label, depth + 1), whole));
        else if (address) made.append(link(address, address, address));
        else if (newline) made.append(element("br"));
    }
    made.append(source.slice(end));
    return made;
}

/** Return a link with *content*, or *otherwise* as text if the URL is not http or https. */
function link(address, content, otherwise) {
    if (!/^(?:https?:\/\/|mailto:)/i.test(address)) return otherwise;
    return element("a", {href: address, target: "_blank", rel: "noopener noreferrer nofollow"}, content);
}
