// The page: its parts, and the navigation between them.

import {Composer} from "./composer.js";
import {Conversation} from "./conversation.js";
import {Conversations} from "./conversations.js";
import {element, text} from "./dom.js";
import {MemoryPanel} from "./memory.js";
import {Transcript} from "./transcript.js";

const at = id => document.getElementById(id);

const transcript = new Transcript(at("scroller"), at("messages"), {
    edit: (message, words) => conversation.edit(message, words),
    regenerate: message => conversation.regenerate(message),
    retry: message => conversation.regenerate(message),
    switchTo: to => conversation.switchTo(to),
    showVersions,
});
const memory = new MemoryPanel(at("memory"), fates => conversation.setFates(fates));
const composer = new Composer(at("composer"), {
    onSend: parts => conversation.send(parts), onStop: () => conversation.stop(), onProblem: showProblem,
});
const conversations = new Conversations(at("conversations"), id => show(id));
const conversation = new Conversation({
    transcript,
    memory,
    onNamed: id => history.replaceState(null, "", addressOf(id)),
    onChange: () => loadList(),
    onErased: () => {
        show(null);
        loadList();
    },
    onProblem: showProblem,
    onBusy: isBusy => {
        composer.setBusy(isBusy);
        transcript.setBusy(isBusy);
        at("memory").toggleAttribute("data-busy", isBusy);
    },
    onShown: ({isEmpty, hasOlder}) => {
        at("welcome").hidden = !isEmpty;
        at("older").hidden = !hasOlder;
    },
});

function addressOf(id) {
    return id === null ? location.pathname : `?chat=${encodeURIComponent(id)}`;
}

/** Open a conversation at its own URL, with an entry in the browser's history. */
function show(id) {
    if (id !== idInAddress()) history.pushState(null, "", addressOf(id));
    open(id);
    if (id === null) composer.field.focus();
    else at("heading").focus();
}

function open(id) {
    view("chat");
    conversations.mark(id);
    setHeading();
    return conversation.open(id);
}

function idInAddress() {
    return new URLSearchParams(location.search).get("chat");
}

async function loadList() {
    try {
        await conversations.load();
        conversations.mark(conversation.id);
        setHeading();
    } catch (error) {
        showProblem(error.message);
    }
}

function setHeading() {
    const title = conversations.titleOf(idInAddress()) ?? text("new_chat");
    at("heading").textContent = title;
    document.title = `${title} · chatmemory`;
}

function showProblem(words) {
    at("problem").hidden = !words;
    at("problem").textContent = words;
}

async function showVersions(sequence) {
    const versions = await conversation.versions(sequence);
    const buttons = versions.map(({sequence: to, words, isCurrent}, index) => {
        const label = `${text("place", {number: index + 1, of: versions.length})}: `;
        const choose = () => {
            at("versions").close();
            if (!isCurrent) conversation.switchTo(to);
        };
        const button = element("button", {type: "button", "aria-current": isCurrent ? "true" : null, onclick: choose}, element("b", {}, label), words.slice(0, 300));
        return element("li", {}, button);
    });
    at("versions").querySelector("ol").replaceChildren(...buttons);
    at("versions").showModal();
}

/** Ask for confirmation in *dialog*, then run *action*. */
function askFirst(button, dialog, action) {
    button.addEventListener("click", () => {
        dialog.returnValue = "";
        dialog.showModal();
    });
    dialog.addEventListener("close", () => {
        if (dialog.returnValue === "yes") action();
    });
}

/** Switch between the three views, of which phones show one at a time. */
function view(name) {
    document.body.dataset.view = name;
    for (const tab of document.querySelectorAll("#tabs button")) tab.setAttribute("aria-pressed", tab.dataset.view === name);
    if (name === "memory") memory.showEnd();
}

askFirst(memory.part("clear"), at("confirm-clear"), () => conversation.clear());
askFirst(memory.part("erase"), at("confirm-erase"), () => conversation.erase());
for (const tab of document.querySelectorAll("#tabs button")) tab.addEventListener("click", () => view(tab.dataset.view));
for (const button of document.querySelectorAll("[data-new]")) button.addEventListener("click", () => show(null));
for (const button of document.querySelectorAll("[data-say]")) {
    button.addEventListener("click", () => {
        conversation.send([{kind: "text", text: button.dataset.say}]);
        composer.field.focus();
    });
}
at("messages").addEventListener("decide", event => conversation.decide(event.detail));
at("older").addEventListener("click", () => conversation.loadOlder());
window.addEventListener("popstate", () => open(idInAddress()));

await loadList();
await open(idInAddress());
