// The history, and which of its messages are sent to the model.

import {announce, element, icon, text} from "./dom.js";
import {editInPlace} from "./editing.js";
import {foot, unsentFoot} from "./foot.js";
import {textOf} from "./messages.js";
import {showParts} from "./parts.js";
import {root} from "./root.js";

const NAMES = {user: "you", assistant: "assistant", system: "system", other: "system"};
const MANY = 200; // messages from which on browsers lay out only those near the view
const SETTLED = 4; // frames after which those near the end have their real heights
const NEAR = 120; // pixels from the end within which new text is scrolled into view

export class Transcript {
    #shown = new Map();
    #sent = null;
    #live = null;
    #announced = 0;

    /** *does* has the actions of the buttons, *onScroll* is called with whether the newest message is in view. */
    constructor(scroller, list, does, onScroll) {
        this.scroller = scroller;
        this.list = list;
        this.does = does;
        const tell = () => onScroll(this.#isAtEnd);
        scroller.addEventListener("scroll", tell, {passive: true});
        new ResizeObserver(tell).observe(list);
    }

    /**
     * Show *messages*, with the status (*fates*) of their sequences; elements of unchanged messages are kept.
     *
     * *keepsTail*: a question that is being sent, and its answer, are not among them yet.
     */
    show(messages, fates, {keepsTail = false} = {}) {
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
        const tail = keepsTail ? [this.#sent, this.#live].filter(Boolean) : [];
        const wanted = new Set([...items, ...tail]);
        // Only new elements are moved, so that the focus stays.
        for (const child of [...this.list.children]) if (!wanted.has(child)) child.remove();
        let place = this.list.firstElementChild;
        for (const item of wanted) {
            if (item === place) place = place.nextElementSibling;
            else this.list.insertBefore(item, place);
        }
        this.list.classList.toggle("many", items.length > MANY);
        this.#shown = shown;
        if (!keepsTail) [this.#sent, this.#live] = [null, null];
        this.mark(fates);
        if (hadFocus && !root.activeElement) this.#focus(hadFocus);
        if (follows) this.toEnd();
    }

    /** Show a message of the user that is being sent. */
    showSent(parts) {
        this.#sent?.remove();
        this.#sent = bare("user", element("div", {class: "foot"}));
        showParts(this.#sent.querySelector(".bubble"), parts, {isMarkdown: false});
        this.list.append(this.#sent);
        this.toEnd();
    }

    /** Show a message of the user that could not be sent. */
    showUnsent(parts) {
        this.showSent(parts);
        this.#sent.classList.add("unsent");
        this.#sent.querySelector(".foot").replaceWith(unsentFoot(this.does));
        this.toEnd();
    }

    /** Show an answer in progress. */
    showLive(answer) {
        const follows = this.#isAtEnd;
        if (!this.#live) {
            this.#live = bare("assistant live", element("div", {class: "foot"}));
            this.list.append(this.#live);
            this.#announced = 0;
        }
        showParts(this.#live.querySelector(".bubble"), answer.parts);
        this.#live.classList.toggle("waiting", !answer.parts.length);
        this.#announce(answer);
        if (follows) this.toEnd();
    }

    /** Begin to edit the message with this *id* again, with *words* in place of its text. */
    edit(id, words) {
        const found = [...this.#shown.values()].find(({message}) => message.id === id);
        if (found) this.#edit(found.item, found.message, words);
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
        shown.forEach(({item, isSent, words, reason}, index) => {
            item.classList.toggle("out", !isSent);
            // Of consecutive messages with the same status, the last one shows it.
            item.classList.toggle("shared", words === shown[index + 1]?.words);
            const fate = item.querySelector(".fate");
            if (fate.textContent !== words) fate.replaceChildren(...(words ? [icon("out"), words] : []));
            fate.title = words ? text(`about_${reason}`) : "";
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

    toEnd(frames = this.list.classList.contains("many") ? SETTLED : 0) {
        this.scroller.scrollTop = this.scroller.scrollHeight;
        if (frames) requestAnimationFrame(() => this.toEnd(frames - 1));
    }

    /** Return the indexes of the focused button and of its message; null if there is none. */
    #focused() {
        const item = root.activeElement?.closest(".message");
        if (!item || !this.list.contains(item)) return null;
        return [[...this.list.children].indexOf(item), [...item.querySelectorAll("button")].indexOf(root.activeElement)];
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
        const edit = () => this.#edit(item, message, textOf(message));
        const item = bare(message.role, foot(message, isLast, this.does, edit));
        const bubble = item.querySelector(".bubble");
        if (message.role === "system" || message.role === "other") {
            const body = element("div", {class: "text", dir: "auto"}, textOf(message));
            bubble.append(element("details", {}, element("summary", {}, text("system")), body));
        } else {
            showParts(bubble, message.parts, {isMarkdown: message.role === "assistant"});
        }
        return item;
    }

    #edit(item, message, words) {
        const isBusy = () => this.list.hasAttribute("data-busy");
        editInPlace(item, words, {isBusy, onSave: saved => this.does.edit(message, saved)});
    }
}

/** Return a message without its parts. */
function bare(role, end) {
    const name = element("h3", {class: "unseen"}, text(NAMES[role.split(" ")[0]]));
    return element("li", {class: `message ${role}`}, name, element("div", {class: "bubble"}), end);
}

/** Return whether any part of *message* is sent and, if not, the reason and its name. */
function fateOf(message, fates) {
    const known = message.sequences.map(sequence => fates.get(sequence)).filter(Boolean);
    const isSent = known.length === 0 || known.some(fate => fate.isSent);
    const isShown = !isSent && !message.metadata.rejected; // that is in its foot
    return {isSent, words: isShown ? text(known[0].reason) : "", reason: known[0]?.reason};
}
