// Requests to the site, with its session and CSRF token.

import {text} from "./dom.js";

export const CONVERSATIONS = "/api/conversations/";
const CHAT = "/api/chat";

/** A request that was refused, or never came back. *status* is 0 where the site could not be reached. */
export class Refused extends Error {
    constructor(message, status = 0) {
        super(message);
        this.status = status;
    }
}

/** The response to a request; a ``Refused`` if it is an error. */
async function request(path, {method = "GET", body, signal} = {}) {
    const headers = {Accept: "application/json, text/event-stream"};
    if (method !== "GET") headers["X-CSRFToken"] = document.cookie.match(/(?:^|; )csrftoken=([^;]+)/)?.[1] ?? "";
    if (body !== undefined) headers["Content-Type"] = "application/json";
    let response;
    try {
        response = await fetch(path, {method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body)});
    } catch (error) {
        throw error.name === "AbortError" ? error : new Refused(text("offline"));
    }
    if (response.ok) return response;
    throw new Refused(response.status === 401 ? text("signed_out") : await reason(response), response.status);
}

/** What a problem of the REST API, or the text of the chat, says. */
async function reason(response) {
    const said = await response.text();
    if (response.headers.get("Content-Type")?.includes("problem+json")) {
        const problem = JSON.parse(said);
        return problem.errors?.[0]?.detail ?? problem.detail;
    }
    return response.headers.get("Content-Type")?.startsWith("text/plain") && said ? said : text("failed");
}

/** The JSON that the REST API answers with; null where there is none. */
export async function rest(path, options) {
    const response = await request(path, options);
    return response.status === 204 ? null : response.json();
}

export function conversationPath(id) {
    return `${CONVERSATIONS}${encodeURIComponent(id)}/`;
}

/** Post to the chat; the response is a stream. It is left by *signal*, but not before the site has taken what was said. */
export async function post(body, signal) {
    const listening = new AbortController();
    const response = await request(CHAT, {method: "POST", body, signal: listening.signal});
    if (signal.aborted) listening.abort();
    else signal.addEventListener("abort", () => listening.abort(), {once: true});
    return response;
}

/** The stream of the answer that is being made; null if there is none. */
export async function resume(id, signal) {
    const response = await request(`${CHAT}/${encodeURIComponent(id)}/stream`, {signal});
    return response.status === 204 ? null : response;
}

export async function stop(id) {
    await request(`${CHAT}/${encodeURIComponent(id)}/stop`, {method: "POST", body: {}});
}
