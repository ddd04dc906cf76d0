// Which conversation is open: the page has it in its address; in a page of the site, the tab remembers it.

import {site} from "./root.js";

const KEY = `chatmemory:${encodeURIComponent(site.user)}:open:${site.assistant ?? ""}`;

const PAGE = site.isPage ? location.pathname : site.addresses.page;

/** Return the address of the chat's page with conversation *id*, or with a new one for null. */
export function addressOf(id) {
    return id === null ? PAGE : `${PAGE}?chat=${encodeURIComponent(id)}`;
}

/** Return the id of the conversation to open; null for a new one. */
export function openId() {
    return site.isPage ? new URLSearchParams(location.search).get("chat") : sessionStorage.getItem(KEY);
}

/** Note that conversation *id* is open; *replaces*: it is the one that was open before, which has an id now. */
export function noteOpen(id, {replaces = false} = {}) {
    if (site.isPage) return history[replaces ? "replaceState" : "pushState"](null, "", addressOf(id));
    return id === null ? sessionStorage.removeItem(KEY) : sessionStorage.setItem(KEY, id);
}
