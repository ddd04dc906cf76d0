// The list of conversations: pinned ones, and the others newest first, in groups by day.

import {conversationPath, CONVERSATIONS, rest} from "./api.js";
import {element, moment, period, text} from "./dom.js";
import {ConversationMenu} from "./listing.js";
import {addressOf} from "./address.js";
import {root, site} from "./root.js";

const SOON = 200; // milliseconds after the last key press

export class Conversations {
    #timer = 0;
    #next = null;
    #asked = 0;
    #period = null;

    /** *onOpen* and *onErase* are called with the id of a conversation, *onChange* after a change, *onProblem* with an error. */
    constructor(root, {onOpen, onErase, onChange, onProblem}) {
        this.list = root.querySelector("[data-part=conversations]");
        this.more = root.querySelector("[data-part=more]");
        this.empty = root.querySelector("[data-part=empty]");
        this.any = root.querySelector("[data-part=any]");
        this.search = root.querySelector("input[type=search]");
        this.archived = root.querySelector("[data-part=archived]");
        this.menu = new ConversationMenu({
            change: (each, changes) => this.#change(each, changes).catch(onProblem),
            erase: each => onErase(each.memory_id),
        });
        Object.assign(this, {onOpen, onChange});
        this.current = null;
        this.search.addEventListener("input", () => {
            clearTimeout(this.#timer);
            this.#timer = setTimeout(() => this.load().catch(onProblem), SOON);
        });
        this.search.form.addEventListener("submit", event => event.preventDefault());
        this.any.addEventListener("click", () => this.load({match: "any"}).catch(onProblem));
        this.more.addEventListener("click", () => this.#loadMore().catch(onProblem));
        this.archived.addEventListener("click", () => {
            this.archived.setAttribute("aria-pressed", this.archived.ariaPressed !== "true");
            this.load().catch(onProblem);
        });
    }

    /** Load the first page; *match* is "any" if any of the words are enough that the user searches for. */
    async load({match = "all"} = {}) {
        clearTimeout(this.#timer); // the button may be pressed while the user types
        const words = this.search.value.trim();
        const asked = ++this.#asked;
        const query = new URLSearchParams({
            page_size: 30, ordering: "-is_pinned", is_archived: this.archived.ariaPressed, ...(words ? {search: words, match} : {}), ...site.filter,
        });
        const page = await rest(`${CONVERSATIONS}?${query}`);
        if (asked !== this.#asked) return; // the user has typed more
        const focused = this.list.contains(root.activeElement) ? root.activeElement.closest("li")?.dataset.id : null;
        this.list.replaceChildren();
        this.#period = null;
        this.#append(page);
        this.empty.hidden = page.results.length > 0;
        this.any.hidden = this.empty.hidden || match === "any" || !words;
        this.empty.textContent = text(words ? "nothing_found" : "no_conversations");
        if (focused) this.#linkOf(focused)?.focus();
    }

    /** Mark the open conversation. */
    mark(id) {
        this.current = id;
        for (const link of this.list.querySelectorAll("a")) {
            if (link.parentElement.dataset.id === id) link.setAttribute("aria-current", "page");
            else link.removeAttribute("aria-current");
        }
    }

    /** Return the title of conversation *id*; undefined if it is not in the list. */
    titleOf(id) {
        return this.#linkOf(id)?.querySelector(".title").textContent;
    }

    #linkOf(id) {
        return [...this.list.querySelectorAll("li")].find(item => item.dataset.id === id)?.querySelector("a");
    }

    async #change({memory_id: id}, changes) {
        await rest(conversationPath(id), {method: "PATCH", body: changes});
        this.onChange();
    }

    async #loadMore() {
        const page = await rest(this.#next);
        this.#append(page)[0]?.querySelector("a").focus();
    }

    /** Append a page of conversations, each in its group, and return their items. */
    #append({results, next}) {
        this.#next = next;
        this.more.hidden = !next;
        return results.map(each => {
            const group = each.is_pinned ? text("pinned_chats") : period(each.updated_at);
            if (group !== this.#period) {
                this.#period = group;
                this.list.append(element("section", {}, element("h2", {}, group), element("ul")));
            }
            const item = this.#item(each);
            this.list.lastElementChild.lastElementChild.append(item);
            return item;
        });
    }

    #item(conversation) {
        const {memory_id: id, title, preview, updated_at: updated} = conversation;
        const open = event => {
            if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return; // opens another tab
            event.preventDefault();
            this.onOpen(id);
        };
        const words = plain(preview ?? "");
        const name = title || words || text("new_chat");
        const link = element(
            "a", {href: addressOf(id), title: moment(updated), "aria-current": id === this.current ? "page" : null, onclick: open},
            element("span", {class: "title", dir: "auto"}, name),
            element("span", {class: "preview", dir: "auto"}, title ? words : ""),
        );
        return element("li", {"data-id": id}, link, this.menu.button(conversation, name));
    }
}

/** Return Markdown without its marks. */
function plain(words) {
    return words.replace(/[*`#>|]+|^[-_]+ /gm, "").replace(/\s+/g, " ").trim();
}
