// What the tabs of one browser tell each other: that a conversation has changed, or that an answer has begun in it.

import {site} from "./root.js";

const channel = new BroadcastChannel(`chatmemory:${site.user}`);

/** Tell the other tabs that conversation *id* has changed. */
export function tellTabs(id) {
    channel.postMessage(id);
}

/** Call *onChange* with the id of a conversation that another tab has changed. */
export function hearTabs(onChange) {
    channel.addEventListener("message", event => onChange(event.data));
}
