// The desk of a conversation: it shows what is new as the chat streams it or, where that is not served, by looking again.
"use strict";

const PAUSE = 5000;

let source = null; // the stream
let isOver = false; // nobody is signed in any more, or may see this: only a reload shows something else

function live() {
    return document.getElementById("cm-live");
}

// Whether the user is in the middle of something that would be lost.
function isBusy() {
    const part = live();
    return part.contains(document.activeElement) && document.activeElement.matches("input")
        || [...part.querySelectorAll("input[name=reason]")].some(reason => reason.value);
}

async function show() {
    if (isBusy() || isOver) return;
    const response = await fetch(location.href);
    isOver = response.redirected || [401, 403, 404].includes(response.status);
    if (!response.ok || isOver) return;
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const found = page.getElementById("cm-live");
    if (found && !isBusy()) live().replaceWith(found);
}

// A hidden desk has no stream: people open many, and a browser has few connections to a site.
function watch() {
    source?.close();
    if (isOver || document.hidden) return;
    source = new EventSource(live().dataset.stream);
    source.onmessage = ({data}) => {
        if (data === "[DONE]") {
            source.close();
            setTimeout(watch, PAUSE);
        } else {
            show();
        }
    };
    // No conversation that a person has: there may be one later.
    source.onerror = () => {
        source.close();
        setTimeout(() => { show().finally(watch); }, PAUSE);
    };
}

// What is typed as the answer stays when another form of the page is sent; nothing of it is kept longer.
function keepTyped(field) {
    const key = `chatmemory-desk:${location.pathname}`;
    field.value ||= sessionStorage.getItem(key) ?? "";
    sessionStorage.removeItem(key);
    document.addEventListener("submit", ({target}) => {
        if (!target.contains(field) && live().parentElement.contains(target)) sessionStorage.setItem(key, field.value);
    });
}

if (live()) {
    const field = document.getElementById("cm-text");
    if (field) keepTyped(field);
    const id = document.querySelector("#cm-answer input[name=id]");
    if (id) id.value = `desk-${crypto.randomUUID?.() ?? Date.now()}`; // sent twice, it is stored once
    if (live().dataset.stream) {
        watch();
        document.addEventListener("visibilitychange", () => { if (document.hidden) source?.close(); else show().finally(watch); });
    } else {
        setInterval(show, PAUSE);
    }
}
