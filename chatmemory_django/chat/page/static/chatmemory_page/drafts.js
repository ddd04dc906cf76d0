// What was written and is not stored by the site yet, by conversation. It survives a reload, and being signed out.

import {site} from "./root.js";

const PREFIX = `chatmemory:${encodeURIComponent(site.user)}:`;

// Nobody finds what another user of this browser has left here, however that one signed out.
for (const key of Object.keys(localStorage)) if (/^chatmemory:[^:]*:/.test(key) && !key.startsWith(PREFIX)) localStorage.removeItem(key);

/** Return {text, unsent} of conversation *id*, null being a new one; *unsent* is a message with its id and parts. */
function read(id) {
    return JSON.parse(localStorage.getItem(PREFIX + (id ?? "")) ?? "{}");
}

function write(id, changes) {
    const kept = {...read(id), ...changes};
    if (!kept.text && !kept.unsent) return localStorage.removeItem(PREFIX + (id ?? ""));
    return localStorage.setItem(PREFIX + (id ?? ""), JSON.stringify(kept));
}

/** Return the text in the message field of conversation *id*. */
export function draftOf(id) {
    return read(id).text ?? "";
}

export function keepDraft(id, text) {
    write(id, {text});
}

/** Return the message of conversation *id* that is being sent, or could not be; null if there is none. */
export function unsentOf(id) {
    return read(id).unsent ?? null;
}

export function keepUnsent(id, {id: messageId, parts}) {
    const kept = parts.map(({picture, ...part}) => part); // a canvas cannot be stored, and the file can be shown
    try {
        write(id, {unsent: {id: messageId, parts: kept}});
    } catch { // files may be larger than a browser stores
        write(id, {unsent: {id: messageId, parts: kept.filter(part => part.kind === "text")}});
    }
}

export function dropUnsent(id) {
    write(id, {unsent: null});
}

/** Forget everything that this user wrote: the next one at this computer must not find it. */
export function forgetAll() {
    for (const key of Object.keys(localStorage)) if (key.startsWith(PREFIX)) localStorage.removeItem(key);
}
