// Requests to the site, with its session and CSRF token.

import {text} from "./dom.js";

export const CONVERSATIONS = "/api/conversations/";
const CHAT = "/api/chat";

/** The page shows what OpenAI's format, the site's own, does not have: thinking, videos, results that are errors. */
export const WHOLE = "as=langchain4j";

/** A failed request. *status* is 0 if the site could not be reached. */
export class Refused extends Error {
    constructor(message, status = 0) {
        super(message);
        this.status = status;
    }
}

/** Return the response to a request; throw ``Refused`` for an error. */
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

/** Return the text of an error of the REST API or of the chat. */
async function reason(response) {
    const content = await response.text();
    if (response.headers.get("Content-Type")?.includes("problem+json")) {
        const problem = JSON.parse(content);
        return problem.errors?.[0]?.detail ?? problem.detail;
    }
    return response.headers.get("Content-Type")?.startsWith("text/plain") && content ? content : text("failed");
}

/** Return the JSON of the REST API's response; null if it has none. */
export async function rest(path, options) {
    const response = await request(path, options);
    return response.status === 204 ? null : response.json();
}

export function conversationPath(id) {
    return `${CONVERSATIONS}${encodeURIComponent(id)}/`;
}

/** Post to the chat, and return the stream. *signal* closes it, but only after the site has received the message. */
export async function post(body, signal) {
    const listening = new AbortController();
    const response = await request(CHAT, {method: "POST", body, signal: listening.signal});
    if (signal.aborted) listening.abort();
    else signal.addEventListener("abort", () => listening.abort(), {once: true});
    return response;
}

/** Return the stream of the answer in progress; null if there is none. */
export async function resume(id, signal) {
    const response = await request(`${CHAT}/${encodeURIComponent(id)}/stream`, {signal});
    return response.status === 204 ? null : response;
}

export async function stop(id) {
    await request(`${CHAT}/${encodeURIComponent(id)}/stop`, {method: "POST", body: {}});
}
