// Requests to the site, with its session and CSRF token.

import {number, text} from "./dom.js";
import {site} from "./root.js";

export const CONVERSATIONS = site.addresses.conversations;
const API = CONVERSATIONS.replace(/conversations\/$/, "");
const CHAT = site.addresses.chat;

/** The page shows what OpenAI's format, the site's own, does not have: thinking, videos, results that are errors. */
export const WHOLE = "as=langchain4j";

/** A failed request. *status* is 0 if the site could not be reached. */
export class Refused extends Error {
    constructor(message, status = 0) {
        super(message);
        this.status = status;
    }

    /** Whether the connection or the server is to blame, so that the same request may succeed later. */
    get isOutage() {
        return this.status === 0 || this.status >= 500;
    }
}

/** Return the response to a request; throw ``Refused`` for an error. */
async function request(path, {method = "GET", body, signal} = {}) {
    const headers = {Accept: "application/json, text/event-stream"};
    if (method !== "GET") headers[site.csrf.header] = csrfToken();
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const response = await reached(fetch(path, {method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body)}));
    if (response.ok) return response;
    throw new Refused(await reason(response), response.status);
}

/** Return the token of the cookie, which is new after a sign-in in another tab; that of the page where scripts see no cookie. */
function csrfToken() {
    const cookie = document.cookie.split("; ").find(each => each.startsWith(`${site.csrf.cookie}=`));
    return cookie?.slice(site.csrf.cookie.length + 1) ?? site.csrf.token;
}

/** Return what a promise of ``fetch`` gives; throw ``Refused`` if the connection is lost in the meantime. */
async function reached(promise) {
    try {
        return await promise;
    } catch (error) {
        throw error.name === "AbortError" ? error : new Refused(text("offline"));
    }
}

/** Return in a sentence why the REST API or the chat has refused a request. */
async function reason(response) {
    const [type, seconds] = [response.headers.get("Content-Type") ?? "", response.headers.get("Retry-After")];
    const content = await reached(response.text());
    if (response.status === 401) return text("signed_out");
    if (response.status === 413 && !/^(text\/plain|application\/problem)/.test(type)) return text("too_large"); // of a proxy
    if (response.status === 429 && seconds) return text("wait", {seconds: number(seconds)});
    if (type.includes("problem+json")) {
        const problem = JSON.parse(content);
        return sentence(problem.errors?.[0]?.detail ?? problem.detail);
    }
    return type.startsWith("text/plain") && content ? sentence(content) : text("failed");
}

/** Return *words* without the path of what is wrong in the body: people have not written one. */
function sentence(words) {
    const plain = words.replace(/^\$[^:\s]*:\s*/, "");
    return plain[0].toUpperCase() + plain.slice(1);
}

/** Return the JSON of the REST API's response; null if it has none. */
export async function rest(path, options) {
    const response = await request(path, options);
    return response.status === 204 ? null : reached(response.json());
}

/** Return what the REST API knows of conversation *id*; null if it does not exist (yet). */
export async function about(id, signal) {
    const found = await rest(`${CONVERSATIONS}?memory_id=${encodeURIComponent(id)}`, {signal});
    return found.results[0] ?? null;
}

export function conversationPath(id) {
    return `${CONVERSATIONS}${encodeURIComponent(id)}/`;
}

/** Post to the chat, and return the stream. *signal* closes it, but only after the site has received the message. */
export async function post(body, signal) {
    const listening = new AbortController();
    const response = await request(CHAT.post, {method: "POST", body, signal: listening.signal});
    if (signal.aborted) listening.abort();
    else signal.addEventListener("abort", () => listening.abort(), {once: true});
    return response;
}

/** Return a page of the messages that have all *words*, or "any" of them, best first: of archived conversations, too. */
export function search(words, match) {
    return rest(`${API}messages/?${new URLSearchParams({search: words, match, page_size: 30})}`);
}

/** Return how many tokens the user's questions have used in 30 days; null if it cannot be asked now. */
export async function tokensUsed() {
    const {results} = await rest(`${API}usage/?by=purpose`).catch(() => ({results: null}));
    return results && results.reduce((sum, row) => sum + row.input + row.output, 0);
}

/** Return what the calls want to do that wait for the approval of somebody else, by the id of the answer and of the call. */
export async function waitingForOthers(id, signal) {
    const messages = await rest(`${CHAT.root}${encodeURIComponent(id)}/messages`, {signal});
    return new Map(messages.map(({id: answer, metadata}) => [
        answer, new Map(metadata?.waitsForOthers?.map(call => [call, metadata.asks?.[call] ?? ""])),
    ]));
}

/** Return the stream of the answer in progress; null if there is none, unless it *stays*, for what people write. */
export async function resume(id, signal, after = null, stays = false) {
    const behind = `?${new URLSearchParams({...(after === null ? {} : {after}), ...(stays ? {stays} : {})})}`;
    const response = await request(`${CHAT.root}${encodeURIComponent(id)}/stream${behind}`, {signal});
    return response.status === 204 ? null : response;
}

/** Return whether a response of *resume* is no answer, but what others write. */
export function isOfPerson(response) {
    return response.headers.has("X-Chatmemory-Handover");
}

export async function stop(id) {
    await request(`${CHAT.root}${encodeURIComponent(id)}/stop`, {method: "POST", body: {}});
}
