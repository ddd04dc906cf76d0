// The desk of a conversation: it shows what is new as the chat streams it or, where that is not served, by looking again.
"use strict";

const PAUSE = 5000;

function live() {
    return document.getElementById("cm-live");
}

// Whether the user is in the middle of something that would be lost.
function isBusy() {
    const part = live();
    return part.contains(document.activeElement) && document.activeElement.matches("input")
        || part.querySelector("input[name=reason]")?.value;
}

async function show() {
    if (isBusy()) return;
    const response = await fetch(location.href);
    if (!response.ok || response.redirected) return;
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const found = page.getElementById("cm-live");
    if (found && !isBusy()) live().replaceWith(found);
}

function watch() {
    const source = new EventSource(live().dataset.stream);
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

if (live()) {
    const id = document.querySelector("#cm-answer input[name=id]");
    if (id) id.value = `desk-${crypto.randomUUID?.() ?? Date.now()}`; // sent twice, it is stored once
    if (live().dataset.stream) watch(); else setInterval(show, PAUSE);
}
