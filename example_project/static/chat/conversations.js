// The list of conversations, newest first.

import {CONVERSATIONS, rest} from "./api.js";
import {element, moment, text} from "./dom.js";

const SOON = 200; // milliseconds after the last key press

export class Conversations {
    #timer = 0;
    #next = null;
    #asked = 0;

    constructor(root, onOpen) {
        this.list = root.querySelector("[data-part=conversations]");
        this.more = root.querySelector("[data-part=more]");
        this.empty = root.querySelector("[data-part=empty]");
        this.search = root.querySelector("input[type=search]");
        this.onOpen = onOpen;
        this.current = null;
        this.search.addEventListener("input", () => {
            clearTimeout(this.#timer);
            this.#timer = setTimeout(() => this.load(), SOON);
        });
        this.search.form.addEventListener("submit", event => event.preventDefault());
        this.more.addEventListener("click", () => this.#loadMore());
    }

    async load() {
        const words = this.search.value.trim();
        const asked = ++this.#asked;
        const page = await rest(`${CONVERSATIONS}?page_size=30${words ? `&search=${encodeURIComponent(words)}` : ""}`);
        if (asked !== this.#asked) return; // the user has typed more
        const focused = this.list.contains(document.activeElement) ? document.activeElement.dataset.id : null;
        this.list.replaceChildren(...page.results.map(each => this.#item(each)));
        this.#end(page);
        this.empty.hidden = page.results.length > 0;
        this.empty.textContent = text(words ? "nothing_found" : "no_conversations");
        if (focused !== null) this.#linkOf(focused)?.focus();
    }

    /** Mark the open conversation. */
    mark(id) {
        this.current = id;
        for (const link of this.list.querySelectorAll("a")) {
            if (link.dataset.id === id) link.setAttribute("aria-current", "page");
            else link.removeAttribute("aria-current");
        }
    }

    /** Return the title of conversation *id*; undefined if it is not in the list. */
    titleOf(id) {
        return this.#linkOf(id)?.querySelector(".title").textContent;
    }

    #linkOf(id) {
        return [...this.list.querySelectorAll("a")].find(link => link.dataset.id === id);
    }

    async #loadMore() {
        const page = await rest(this.#next);
        const items = page.results.map(each => this.#item(each));
        this.list.append(...items);
        this.#end(page);
        items[0]?.querySelector("a").focus();
    }

    #end(page) {
        this.#next = page.next;
        this.more.hidden = !page.next;
    }

    #item({memory_id: id, title, preview, updated_at: updated}) {
        const open = event => {
            if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return; // opens another tab
            event.preventDefault();
            this.onOpen(id);
        };
        const link = element(
            "a", {href: `?chat=${encodeURIComponent(id)}`, "data-id": id, "aria-current": id === this.current ? "page" : null, onclick: open},
            element("span", {class: "title"}, title || preview || text("new_chat")),
            element("time", {datetime: updated}, moment(updated)),
            element("span", {class: "preview"}, title ? preview ?? "" : ""),
        );
        return element("li", {}, link);
    }
}
