// The elements for the parts of a message: texts, thinking, tool calls, files.

import {withCopyButton} from "./clipboard.js";
import {element, icon, text} from "./dom.js";
import {shownFile} from "./files.js";
import {markdown} from "./markdown.js";
import {visible} from "./visible.js";

const STATES = {running: ["spin", "tool_runs"], waiting: ["stop", "tool_waits"], others: ["stop", "tool_others"], done: ["check", "tool_done"], failed: ["cross", "tool_failed"], unknown: ["cross", "tool_unknown"]};

/** Show *parts* in *container*. Elements of unchanged parts are kept, so that open details stay open. */
export function showParts(container, parts, {isMarkdown = true} = {}) {
    parts.forEach((part, index) => {
        const key = `${part.kind} ${part.id ?? ""}`;
        let shown = container.children[index];
        if (shown?.dataset.key !== key) {
            const made = create(part);
            made.dataset.key = key;
            if (shown) shown.replaceWith(made);
            else container.append(made);
            shown = made;
        }
        const state = JSON.stringify(part);
        if (shown.shownState !== state) {
            shown.shownState = state;
            FILLERS[part.kind](shown, part, isMarkdown);
        }
    });
    while (container.childElementCount > parts.length) container.lastElementChild.remove();
}

function create(part) {
    switch (part.kind) {
        case "reasoning":
            return element("details", {class: "reasoning"}, element("summary"), element("div", {class: "text"}));
        case "tool":
            return element("details", {class: "call"}, element("summary"), element("div", {class: "detail"}));
        case "file":
            return element("figure", {class: "file"});
        default:
            return element("div", {class: "text", dir: "auto"});
    }
}

/** Return Markdown as elements: each block in its own direction, code with a button to copy it. */
function formatted(source) {
    const made = markdown(source);
    for (const block of made.children) block.dir = "auto";
    made.querySelectorAll("pre").forEach(withCopyButton);
    return made;
}

const FILLERS = {
    text(shown, part, isMarkdown) {
        if (isMarkdown) shown.replaceChildren(formatted(part.text));
        else shown.textContent = part.text;
    },
    reasoning(shown, part) {
        const [summary, body] = shown.children;
        summary.textContent = text(part.isOpen ? "thinking" : "thoughts");
        body.replaceChildren(formatted(part.text));
    },
    tool(shown, part) {
        const [summary, body] = shown.children;
        const [drawing, words] = STATES[part.state];
        shown.dataset.state = part.state;
        summary.replaceChildren(
            icon(drawing), element("code", {}, `${visible(part.name)}(${visible(brief(part.input))})`),
            element("span", {class: ["unknown", "others"].includes(part.state) ? "outcome" : "unseen"}, ` ${text(words)}`),
            part.output ? element("span", {class: "outcome"}, part.output) : "",
        );
        body.replaceChildren(
            element("h4", {}, text("arguments")), element("pre", {tabindex: 0}, visible(part.input || "{}")),
            ...(["waiting", "others"].includes(part.state) ? decision(part) : [element("h4", {}, text("result")), element("pre", {tabindex: 0}, part.output)]),
        );
        if (part.state === "waiting" || part.asks && part.state === "others") shown.open = true;
    },
    file(shown, part) {
        shown.replaceChildren(shownFile(part));
    },
};

/** Return what a call that waits wants to do, in words of its tool if that has some. */
export function questionOf(part) {
    return part.asks ? text("wants_to", {asks: visible(part.asks)}) : text("may_run");
}

/** Return the question whether a call may run. A click on an answer is the event "decide". */
function decision(part) {
    if (!part.approval) return part.asks ? [element("p", {class: "decision"}, questionOf(part))] : [];
    const button = (words, approved, attributes) => element("button", {
        type: "button",
        "data-acts": "",
        "aria-label": `${text(words)}: ${visible(part.name)}`,
        onclick: event => event.target.dispatchEvent(
            new CustomEvent("decide", {bubbles: true, detail: {id: part.approval, approved}}),
        ),
        ...attributes,
    }, text(words));
    const buttons = [button("approve", true, {class: "main"}), " ", button("deny", false)];
    const question = questionOf(part);
    return [element("p", {class: "decision", role: "group", "aria-label": question}, question, " ", ...buttons)];
}

/** Return the values of JSON arguments; empty while they are incomplete. */
function brief(input) {
    try {
        return Object.values(JSON.parse(input || "{}")).map(value => JSON.stringify(value)).join(", ");
    } catch {
        return "…";
    }
}
