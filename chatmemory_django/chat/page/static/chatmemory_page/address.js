// Which conversation is open: the page has it in its address; in a page of the site, the tab remembers it.

import {site} from "./root.js";

const KEY = `chatmemory:${encodeURIComponent(site.user)}:open:${site.assistant ?? ""}`;

const PAGE = site.isPage ? location.pathname : site.addresses.page;

/** Return the address of the chat's page with conversation *id*, at one of its messages, or with a new one for null. */
export function addressOf(id, sequence = null) {
    return id === null ? PAGE : `${PAGE}?chat=${encodeURIComponent(id)}${sequence === null ? "" : `&message=${sequence}`}`;
}

/** Return the sequence of the message at which to open the conversation; null for its end. */
export function openMessage() {
    const sequence = site.isPage ? new URLSearchParams(location.search).get("message") : null;
    return /^[0-9]{1,9}$/.test(sequence) ? Number(sequence) : null;
}

/** Return the id of the conversation to open; null for a new one. */
export function openId() {
    return site.isPage ? new URLSearchParams(location.search).get("chat") : sessionStorage.getItem(KEY);
}

/** Note that conversation *id* is open; *replaces*: it is the one that was open before, which has an id now. */
export function noteOpen(id, {replaces = false, sequence = null} = {}) {
    if (site.isPage) return history[replaces ? "replaceState" : "pushState"](null, "", addressOf(id, sequence));
    return id === null ? sessionStorage.removeItem(KEY) : sessionStorage.setItem(KEY, id);
}
