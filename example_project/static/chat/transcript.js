// The history, and which of its messages are sent to the model.

import {announce, element, icon, iconButton, number, text} from "./dom.js";
import {textOf} from "./messages.js";
import {showParts} from "./parts.js";

const NAMES = {user: "you", assistant: "assistant", system: "system", hidden: "system", other: "system"};
const NEAR = 120; // pixels from the end within which new text is scrolled into view

export class Transcript {
    #shown = new Map();
    #live = null;
    #announced = 0;

    /** *does* has the actions of the buttons: edit, regenerate, retry, switchTo, showVersions. */
    constructor(scroller, list, does) {
        this.scroller = scroller;
        this.list = list;
        this.does = does;
    }

    /** Show *messages*, with the status (*fates*) of their sequences; elements of unchanged messages are kept. */
    show(messages, fates) {
        const [follows, hadFocus] = [this.#isAtEnd, this.#focused()];
        const shown = new Map();
        messages.forEach((message, index) => {
            const isLast = index === messages.length - 1;
            const state = JSON.stringify([message, isLast]);
            const key = message.sequences[0];
            let entry = this.#shown.get(key);
            if (entry?.state !== state) entry = {state, message, item: this.#item(message, isLast)};
            shown.set(key, entry);
        });
        const items = [...shown.values()].map(entry => entry.item);
        // Only new elements are moved, so that the focus stays.
        for (const child of [...this.list.children]) if (!items.includes(child)) child.remove();
        items.forEach((item, index) => {
            if (this.list.children[index] !== item) this.list.insertBefore(item, this.list.children[index] ?? null);
        });
        this.#shown = shown;
        this.#live = null;
        this.mark(fates);
        if (hadFocus && document.activeElement === document.body) this.#focus(hadFocus);
        if (follows) this.toEnd();
    }

    /** Show a message of the user that is being sent. */
    showSent(parts) {
        const item = element("li", {class: "message user"}, name("user"), element("div", {class: "bubble"}));
        showParts(item.lastElementChild, parts, {isMarkdown: false});
        this.list.append(item);
        this.toEnd();
    }

    /** Show an answer in progress. */
    showLive(answer) {
        const follows = this.#isAtEnd;
        if (!this.#live) {
            this.#live = element("li", {class: "message assistant live"}, name("assistant"), element("div", {class: "bubble"}));
            this.list.append(this.#live);
            this.#announced = 0;
        }
        const body = this.#live.lastElementChild;
        showParts(body, answer.parts);
        this.#live.classList.toggle("waiting", !answer.parts.length);
        this.#announce(answer);
        if (follows) this.toEnd();
    }

    /** Remove all messages after *sequence*, which another answer or question will replace. */
    cut(sequence) {
        for (const [key, entry] of this.#shown) {
            if (key > sequence) {
                entry.item.remove();
                this.#shown.delete(key);
            }
        }
    }

    /** Style the visible messages by their status. */
    mark(fates) {
        const shown = [...this.#shown.values()].map(({item, message}) => ({item, ...fateOf(message, fates)}));
        shown.forEach(({item, isSent, words}, index) => {
            item.classList.toggle("out", !isSent);
            // Of consecutive messages with the same status, the last one shows it.
            item.classList.toggle("shared", words === shown[index + 1]?.words);
            const fate = item.querySelector(".fate");
            if (fate.textContent !== words) fate.replaceChildren(...(words ? [icon("out"), words] : []));
        });
    }

    /** While an answer is in progress, disable the buttons that would request another. */
    setBusy(isBusy) {
        this.list.toggleAttribute("data-busy", isBusy);
        this.list.setAttribute("aria-busy", isBusy);
    }

    /** Keep the scroll position while *change* adds something above. */
    keepPlace(change) {
        const fromEnd = this.scroller.scrollHeight - this.scroller.scrollTop;
        change();
        this.scroller.scrollTop = this.scroller.scrollHeight - fromEnd;
    }

    toEnd() {
        this.scroller.scrollTop = this.scroller.scrollHeight;
    }

    /** Return the indexes of the focused button and of its message; null if there is none. */
    #focused() {
        const item = document.activeElement?.closest?.(".message");
        if (!item || !this.list.contains(item)) return null;
        return [[...this.list.children].indexOf(item), [...item.querySelectorAll("button")].indexOf(document.activeElement)];
    }

    /** Focus the button in the position of one that was removed. */
    #focus([place, which]) {
        const buttons = [...(this.list.children[place]?.querySelectorAll("button") ?? [])];
        (buttons.slice(which).find(each => !each.disabled) ?? buttons.find(each => !each.disabled))?.focus();
    }

    get #isAtEnd() {
        const {scrollTop, scrollHeight, clientHeight} = this.scroller;
        return scrollHeight - scrollTop - clientHeight < NEAR;
    }

    /** Announce *answer* to screen readers, sentence by sentence. */
    #announce(answer) {
        const whole = textOf(answer);
        const isOver = answer.state !== "begun";
        const end = isOver ? whole.length : Math.max(...[". ", "! ", "? ", "\n"].map(each => whole.lastIndexOf(each) + 1));
        if (end > this.#announced) announce(whole.slice(this.#announced, end));
        this.#announced = Math.max(end, this.#announced);
    }

    #item(message, isLast) {
        const item = element("li", {class: `message ${message.role}`}, name(message.role));
        if (message.role === "system" || message.role === "other") {
            const body = element("div", {class: "text"}, textOf(message));
            item.append(element("details", {class: "bubble"}, element("summary", {}, text("system")), body));
        } else if (message.role === "hidden") {
            item.append(element("div", {class: "bubble"}, text("hidden")));
        } else {
            const bubble = element("div", {class: "bubble"});
            showParts(bubble, message.parts, {isMarkdown: message.role === "assistant"});
            item.append(bubble);
        }
        item.append(this.#foot(item, message, isLast));
        return item;
    }

    #foot(item, message, isLast) {
        const foot = element("div", {class: "foot"}, element("span", {class: "fate"}));
        for (const place of message.places) foot.append(this.#place(place));
        if (message.role === "user") {
            foot.append(iconButton("edit", text("edit"), () => this.#edit(item, message), {"data-acts": ""}));
            if (isLast) {
                const retry = element("button", {type: "button", "data-acts": "", onclick: () => this.does.retry(message)}, text("retry"));
                foot.append(element("span", {class: "unanswered"}, text("unanswered"), " ", retry));
            }
        } else if (message.role === "assistant") {
            foot.append(iconButton("again", text("regenerate"), () => this.does.regenerate(message), {"data-acts": ""}));
            const {partial, isCut, model, input, output} = message.metadata;
            if (isCut) foot.append(element("span", {class: "note"}, text("cut")));
            if (partial) foot.append(element("span", {class: "note"}, text("partial")));
            if (model && input !== undefined) {
                const usage = {model, input: number(input), output: number(output ?? 0)};
                foot.append(element("span", {class: "note usage"}, text("usage", usage)));
            }
        }
        return foot;
    }

    /** Return "2 of 3", with buttons for the other versions. */
    #place({sequence, number: place, of, previous, next}) {
        const way = (to, drawing, label) =>
            iconButton(drawing, text(label), () => this.does.switchTo(to), {"data-acts": "", disabled: to === null});
        const all = element(
            "button", {type: "button", class: "quiet", title: text("versions"), "data-acts": "", onclick: () => this.does.showVersions(sequence)},
            text("place", {number: place, of}),
        );
        return element(
            "span", {class: "place", role: "group", "aria-label": text("versions")},
            way(previous, "left", "previous_version"), all, way(next, "right", "next_version"),
        );
    }

    #edit(item, message) {
        const bubble = item.querySelector(".bubble");
        const field = element("textarea", {"aria-label": text("edit_label"), rows: 3});
        field.value = textOf(message);
        const end = () => {
            form.remove();
            item.classList.remove("editing");
            item.querySelector("[data-acts]")?.focus();
        };
        const submit = event => {
            event?.preventDefault();
            if (!field.value.trim() || this.list.hasAttribute("data-busy")) return;
            end();
            this.does.edit(message, field.value);
        };
        const form = element(
            "form", {class: "edit", onsubmit: submit}, field,
            element("div", {}, element("button", {type: "button", onclick: end}, text("cancel")), element("button", {class: "main"}, text("save"))),
        );
        field.addEventListener("keydown", event => {
            if (event.key === "Escape") end();
            else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
        });
        item.classList.add("editing");
        bubble.after(form);
        field.focus();
    }
}

function name(role) {
    return element("h3", {class: "unseen"}, text(NAMES[role]));
}

/** Return whether any part of *message* is sent and, if not, the reason. */
function fateOf(message, fates) {
    const known = message.sequences.map(sequence => fates.get(sequence)).filter(Boolean);
    const isSent = known.length === 0 || known.some(fate => fate.isSent);
    return {isSent, words: isSent ? "" : text(known[0].reason)};
}
