// What can be done to a conversation in the list: a menu, and the dialog for its title.

import {element, text} from "./dom.js";
import {at} from "./root.js";

export class ConversationMenu {
    #conversation = null;

    /** *does* has the actions: change a conversation, with what is to change, and erase one. */
    constructor({change, erase}) {
        this.menu = at("actions");
        const on = (name, action) => this.menu.querySelector(`[data-do=${name}]`).addEventListener("click", () => {
            this.menu.hidePopover();
            action(this.#conversation);
        });
        on("rename", () => this.#askForTitle());
        on("pin", each => change(each, {is_pinned: !each.is_pinned}));
        on("archive", each => change(each, {is_archived: !each.is_archived}));
        on("erase", erase);
        at("rename").addEventListener("close", () => {
            const title = at("title").value.trim();
            if (at("rename").returnValue === "yes" && title) change(this.#conversation, {title});
        });
    }

    /** Return the button that opens the menu of *conversation*, which is listed as *title*. */
    button(conversation, title) {
        const label = text("actions", {title});
        const button = element("button", {type: "button", class: "quiet", "aria-label": label, title: text("more_actions"), "aria-haspopup": "true"}, "⋯");
        button.addEventListener("click", () => this.#open(conversation, button));
        return button;
    }

    #open(conversation, button) {
        this.#conversation = conversation;
        const name = (which, words) => { this.menu.querySelector(`[data-do=${which}]`).textContent = text(words); };
        name("pin", conversation.is_pinned ? "unpin" : "pin");
        name("archive", conversation.is_archived ? "unarchive" : "archive");
        this.menu.showPopover();
        const [{bottom, top, right}, {height, width}] = [button.getBoundingClientRect(), this.menu.getBoundingClientRect()];
        this.menu.style.top = `${bottom + height > innerHeight ? Math.max(0, top - height) : bottom}px`;
        this.menu.style.left = `${Math.max(8, Math.min(right, innerWidth - 8) - width)}px`;
        this.menu.querySelector("button").focus();
    }

    #askForTitle() {
        at("title").value = this.#conversation.title || this.#conversation.preview || "";
        at("rename").returnValue = "";
        at("rename").showModal();
        at("title").select();
    }
}
