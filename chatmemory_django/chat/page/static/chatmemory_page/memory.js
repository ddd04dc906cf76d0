// The memory panel: how full the memory is, its messages, and a preview of other window sizes.

import {element, number, text} from "./dom.js";
import {conversationPath, rest, WHOLE} from "./api.js";

const KINDS = {SYSTEM: "system", USER: "user", AI: "ai", TOOL_EXECUTION_RESULT: "tool", CUSTOM: "custom"};
const SOON = 150; // milliseconds after the slider's last move

export class MemoryPanel {
    #rows = new Map();
    #timer = 0;
    #limit = 0;
    #asked = 0;

    /** *onFates* is called with the status of each sequence whenever one changes. */
    constructor(root, onFates) {
        this.root = root;
        this.onFates = onFates;
        this.part = name => root.querySelector(`[data-part="${name}"]`);
        this.part("slider").addEventListener("input", () => this.#previewSoon());
        this.part("reset").addEventListener("click", () => {
            this.#back();
            this.part("slider").focus();
        });
    }

    /**
     * Load the memory of a conversation, or none for null; *history* has its visible rows, *waiting* the sequences of those
     * whose calls wait for a person.
     */
    async load(conversation, history, signal, waiting = new Set()) {
        clearTimeout(this.#timer);
        const asked = ++this.#asked;
        [this.id, this.total, this.history] = [conversation?.memory_id ?? null, conversation?.total_messages ?? 0, history];
        this.waiting = waiting;
        const seen = conversation && await this.#read("", signal);
        if (asked !== this.#asked) return; // a newer request is running
        this.seen = seen;
        this.#limit = seen?.limit ?? 0;
        this.unit = seen?.unit ?? "tokens"; // a window counts one of both
        const slider = this.part("slider");
        slider.max = this.#limit || 1;
        slider.disabled = !seen?.messages.length;
        this.#back();
    }

    async #read(query, signal) {
        const seen = await rest(`${conversationPath(this.id)}memory/?explain=1&${WHOLE}${query}`, {signal});
        for (const each of seen.explanation) { // a call that waits has no result yet, and that is no fault
            if (each.reason === "unpaired_tool" && this.waiting.has(each.sequence)) each.reason = "waits";
        }
        return seen;
    }

    #back() {
        const slider = this.part("slider");
        slider.value = slider.max;
        this.part("reset").hidden = true;
        this.#show(this.seen, false);
    }

    #previewSoon() {
        clearTimeout(this.#timer);
        this.#showWindow();
        this.#timer = setTimeout(() => this.#preview(), SOON);
    }

    async #preview() {
        const slider = this.part("slider");
        const {value, max} = slider;
        if (value === max) return this.#back();
        const id = this.id;
        const seen = await this.#read(`&max_${this.unit}=${value}`).catch(() => null);
        if (!seen || id !== this.id || slider.value !== value) return undefined; // the slider has moved again
        this.part("reset").hidden = false;
        return this.#show(seen, true);
    }

    #show(seen, isPreview) {
        const explained = seen?.explanation ?? [];
        const sent = explained.filter(each => each.is_sent);
        const used = sent.reduce((sum, each) => sum + this.#cost(each), 0);
        this.root.classList.toggle("preview", isPreview);
        this.#gauge(sent, used, isPreview);
        this.#texts(seen);
        const entries = this.#entries(seen);
        this.#table(entries);
        const listed = entries.filter(each => each.reason !== "summary");
        const [sentCount, all] = [listed.filter(each => each.is_sent).length, Math.max(this.total, listed.length)];
        const counts = {sent: number(sentCount), all: number(all), limit: number(this.part("slider").value)};
        const isSummarized = entries.some(each => each.reason === "summary" && each.is_sent);
        const sentence = `${isPreview ? "would_be_sent" : "sent_count"}${isSummarized ? "_and_summary" : ""}`;
        this.part("count").textContent = listed.length ? text(sentence, counts) : "";
        this.#showWindow();
        this.part("clear").disabled = !sent.length;
        this.part("erase").disabled = this.id === null;
        this.onFates(new Map(explained.map(each => [each.sequence, {isSent: each.is_sent, reason: each.reason}])));
    }

    /** Return how much of the window a message takes. */
    #cost(entry) {
        return this.unit === "messages" ? 1 : entry.token_count ?? 0;
    }

    #showWindow() {
        const words = text(`window_of_${this.unit}`, {number: number(this.part("slider").value)});
        this.part("window").textContent = this.#limit ? words : "–";
    }

    #gauge(sent, used, isPreview) {
        const gauge = this.part("gauge");
        const limit = isPreview ? Number(this.part("slider").value) : this.#limit;
        const words = limit ? text(this.unit, {used: number(used), limit: number(limit)}) : text("empty_memory");
        gauge.setAttribute("aria-valuemax", limit || 1);
        gauge.setAttribute("aria-valuenow", Math.min(used, limit));
        gauge.setAttribute("aria-valuetext", words);
        this.part("used").textContent = words;
        // Relative to the real limit, so that a smaller window looks smaller.
        gauge.style.setProperty("--window", `${this.#limit ? 100 * limit / this.#limit : 100}%`);
        const pieces = sent.map(each => {
            const piece = element("i", {class: kindOf(each)});
            piece.style.width = `${100 * this.#cost(each) / (this.#limit || 1)}%`;
            return piece;
        });
        gauge.querySelector(".pieces").replaceChildren(...pieces);
    }

    /** Show the system message and the summary. */
    #texts(seen) {
        const textAt = reason => {
            const found = seen?.explanation.find(each => each.reason === reason && each.type === "SYSTEM");
            const message = found && seen.messages.find(each => each.sequence === found.sequence);
            return message?.message?.text ?? null; // what the user may not read is not shown
        };
        for (const [reason, part] of [["pinned", "system"], ["summary", "summary"]]) {
            const words = textAt(reason);
            this.part(part).hidden = words === null;
            this.part(part).querySelector(".text").textContent = words ?? "";
        }
    }

    /** Return the rows of the table: the visible history, and the summary after the messages that it covers. */
    #entries(seen) {
        if (!seen) return [];
        const explained = new Map(seen.explanation.map(each => [each.sequence, each]));
        const entries = this.history.filter(row => explained.has(row.sequence))
            .map(row => ({...explained.get(row.sequence), words: wordsOf(row.message)}));
        const known = new Set(entries.map(each => each.sequence));
        const older = seen.messages.filter(row => !known.has(row.sequence))
            .map(row => ({...explained.get(row.sequence), words: wordsOf(row.message)}));
        const summary = older.find(each => each.reason === "summary");
        const all = [...older.filter(each => each !== summary), ...entries].sort((one, other) => one.sequence - other.sequence);
        if (summary) {
            const place = all.findIndex(each => each.is_sent && each.reason !== "pinned");
            all.splice(place < 0 ? all.length : place, 0, summary);
        }
        return all;
    }

    /** Scroll to the newest row, unless the user has scrolled back. */
    showEnd() {
        const box = this.part("table");
        if (!box.matches(":hover, :focus")) box.scrollTop = box.scrollHeight;
    }

    #table(entries) {
        const rows = new Map();
        for (const entry of entries) {
            const row = this.#rows.get(entry.sequence) ?? newRow(entry);
            rows.set(entry.sequence, row);
            fill(row, entry);
        }
        this.#rows = rows;
        const body = this.part("rows");
        const wanted = [...rows.values()];
        for (const child of [...body.children]) if (!wanted.includes(child)) child.remove();
        wanted.forEach((row, index) => {
            if (body.children[index] !== row) body.insertBefore(row, body.children[index] ?? null);
        });
        this.part("table").hidden = !wanted.length;
        this.showEnd();
    }
}

function newRow(entry) {
    return element(
        "tr", {class: kindOf(entry)},
        element("th", {scope: "row"}, element("span", {class: "swatch", "aria-hidden": "true"}), element("span", {class: "words", dir: "auto"})),
        element("td", {class: "fate"}), element("td", {class: "cost"}),
    );
}

function fill(row, entry) {
    const [cell, fate, cost] = row.children;
    row.classList.toggle("out", !entry.is_sent);
    const name = text(`kind_${kindOf(entry)}`);
    cell.lastElementChild.textContent = entry.reason === "summary" ? name : entry.words || name;
    cell.title = name;
    fate.textContent = text(entry.reason);
    fate.title = text(`about_${entry.reason}`);
    cost.textContent = entry.token_count === null ? "" : number(entry.token_count);
}

function kindOf(entry) {
    return entry.reason === "summary" ? "summary" : KINDS[entry.type];
}

/** Return the beginning of a message as one line. */
function wordsOf(message) {
    const calls = (message?.toolExecutionRequests ?? []).map(call => `${call.name}(…)`);
    const texts = (message?.contents ?? []).map(content => content?.text ?? `[${text(content?.type === "IMAGE" ? "image" : "file")}]`);
    return [message?.text, ...texts, ...calls].filter(Boolean).join(" ").slice(0, 160);
}
