// The page: its parts, and the navigation between them.

import {noteOpen, openId, openMessage} from "./address.js";
import {conversationPath, CONVERSATIONS, rest, tokensUsed} from "./api.js";
import {offerColors} from "./colors.js";
import {Composer} from "./composer.js";
import {Conversation} from "./conversation.js";
import {Conversations} from "./conversations.js";
import {announce, element, moment, number, text} from "./dom.js";
import {draftOf, dropUnsent, forgetAll, keepDraft} from "./drafts.js";
import {MemoryPanel} from "./memory.js";
import {at, host, root, site} from "./root.js";
import {hearTabs, tellTabs} from "./tabs.js";
import {Transcript} from "./transcript.js";

const NAME = document.title;

const transcript = new Transcript(at("scroller"), at("messages"), {
    edit: (message, words) => conversation.edit(message, words),
    pin: at("memory") && ((sequence, isPinned) => conversation.pin(sequence, isPinned)),
    rate: (sequence, value) => (value === 1 ? askWhy(sequence) : conversation.rate(sequence, value)),
    regenerate: message => conversation.regenerate(message),
    retry: message => conversation.regenerate(message),
    sendWithoutFiles: message => conversation.sendWithoutFiles(message),
    sendAgain: () => conversation.sendAgain(),
    switchTo: to => conversation.switchTo(to),
    takeBack: () => conversation.takeBack(),
    showVersions,
}, isAtEnd => { at("newest").hidden = isAtEnd; });
const memory = at("memory") && new MemoryPanel(at("memory"), fates => conversation.setFates(fates));
const composer = new Composer(at("composer"), {
    onSend: parts => conversation.send(parts),
    onType: words => keepDraft(conversation.id, words),
    onStop: () => conversation.stop(),
    onWait: () => showStatus(text("still_answering")),
    onProblem: words => showProblem({message: words}),
});
const conversations = at("conversations") && new Conversations(at("conversations"), {
    onOpen: (id, sequence) => show(id, sequence), onErase: id => askToErase(id), onChange: () => loadList(), onProblem: showProblem,
});
const conversation = new Conversation({
    transcript,
    memory,
    composer,
    onNamed: id => {
        noteOpen(id, {replaces: true});
        conversations?.mark(id);
    },
    chosen,
    onMissing: (id, {wasShown = false} = {}) => {
        if (!wasShown && draftOf(id)) return; // a new one, whose first message was not sent
        noteOpen(null, {replaces: true});
        keepTyped();
        open(null);
        if (wasShown || site.isPage) showProblem({message: text("missing")});
    },
    onChange: () => loadList(),
    onAnswered: () => showUsed(),
    onProblem: showProblem,
    onStatus: showStatus,
    onHandover: showPerson,
    onBusy: isBusy => {
        composer.setBusy(isBusy);
        transcript.setBusy(isBusy);
        at("memory")?.toggleAttribute("data-busy", isBusy);
        if (!isBusy) showStatus("");
    },
    onShown: ({isEmpty, hasOlder, hasNewer}) => {
        at("welcome").hidden = !isEmpty;
        at("older").hidden = !hasOlder;
        at("later").hidden = !hasNewer;
        setHeading();
        showAssistant();
    },
});

/** Return whom, and which of its models, a question asks; a conversation belongs to the assistant that began it. */
function chosen() {
    return {assistant: at("assistant")?.value ?? site.assistant ?? undefined, model: at("model")?.value};
}

function showAssistant() {
    const choice = at("assistant");
    if (!choice) return;
    choice.disabled = [...choice.options].some(option => option.value === conversation.assistant);
    if (choice.disabled) choice.value = conversation.assistant;
}

/** Open a conversation at its own URL, with an entry in the browser's history: at its end, or at a message. */
function show(id, sequence = null) {
    if (id !== openId() || sequence !== openMessage()) noteOpen(id, {sequence});
    open(id, sequence);
    if (id === null) composer.field.focus();
    else at("heading").focus();
}

function open(id, sequence = null) {
    view("chat");
    conversations?.mark(id);
    composer.setText(draftOf(id));
    const opened = conversation.open(id, sequence);
    setHeading();
    return opened;
}

/** Open a conversation that the site erases after a while: it exists before its first message, so that none is stored elsewhere. */
async function openTemporary() {
    showProblem(null);
    try {
        const {memory_id: id} = await rest(CONVERSATIONS, {method: "POST", body: {temporary: true}});
        show(id);
        composer.field.focus();
        await loadList();
    } catch (error) {
        showProblem(error);
    }
}

/** Keep what is in the field, behind the draft that is shown in its place; without the lines of an Enter that sent nothing. */
function keepTyped() {
    const [id, typed] = [openId(), composer.field.value.replace(/\n+$/, "")];
    const draft = draftOf(id);
    // A browser fills the field with what was in it before a reload: that is the draft, perhaps with more behind it.
    if (typed.trim()) keepDraft(id, typed.startsWith(draft.trimEnd()) ? typed : `${draft}\n\n${typed}`);
}

/** Show how many tokens were used; if that is not known, the number before stays. */
async function showUsed() {
    const place = at("used");
    const used = place && await tokensUsed();
    if (used !== null) place.textContent = text("tokens_used", {number: number(used)});
}

async function loadList() {
    try {
        await conversations?.load();
        conversations?.mark(conversation.id);
        setHeading();
    } catch (error) {
        showProblem(error);
    }
}

function setHeading() {
    const title = conversations?.titleOf(openId()) || conversation.title || text("new_chat");
    at("heading").textContent = title;
    if (site.isPage) document.title = `${title} · ${NAME}`;
    const until = conversation.keptUntil;
    at("kept").hidden = !until;
    at("kept").textContent = until ? text("kept_until", {moment: moment(until)}) : "";
}

/** Show what went wrong; null hides it. */
function showProblem(error) {
    const isKnown = !error || !(error instanceof TypeError || error instanceof SyntaxError);
    if (!isKnown) console.error(error);
    const words = isKnown ? error?.message ?? "" : text("failed");
    at("problem").hidden = !words;
    at("problem").dataset.status = error?.status ?? "";
    at("problem").replaceChildren(words, error?.status === 401 ? element("a", {href: signInAddress()}, text("sign_in")) : "");
}

/** Return where people sign in, and come back from to this page. */
function signInAddress() {
    const address = new URL(site.addresses.signIn, location.href);
    address.searchParams.set("next", location.pathname + location.search);
    return address.href;
}

function showStatus(words) {
    at("status").hidden = !words;
    at("status").textContent = words;
}

/** Show which person answers, *name*, or that one will; null for the assistant. */
function showPerson(handover) {
    const isPerson = handover !== null && handover.state !== "assistant";
    at("messages").toggleAttribute("data-person", isPerson);
    at("who").hidden = !isPerson;
    at("who").textContent = !isPerson ? "" : handover.name ? text("person_answers", {name: handover.name}) : text("person_waits");
}

/** Ask why an answer is bad, and store that with the rating. */
function askWhy(sequence) {
    at("reason").value = "";
    confirmed(at("why"), () => conversation.rate(sequence, 1, at("reason").value.trim()));
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
function confirmed(dialog, action) {
    dialog.returnValue = "";
    dialog.onclose = () => {
        if (dialog.returnValue === "yes") action();
    };
    dialog.showModal();
}

function askToErase(id) {
    confirmed(at("confirm-erase"), async () => {
        try {
            await rest(conversationPath(id), {method: "DELETE"});
        } catch (error) {
            return showProblem(error);
        }
        dropUnsent(id);
        keepDraft(id, "");
        announce(text("erased"));
        tellTabs(id);
        if (id === conversation.id) show(null);
        return loadList();
    });
}

/** Switch between the three views, of which phones show one at a time. */
function view(name) {
    host.dataset.view = name;
    for (const tab of root.querySelectorAll("#tabs button")) tab.setAttribute("aria-pressed", tab.dataset.view === name);
    if (name === "memory") memory?.showEnd();
}

memory?.part("clear").addEventListener("click", () => confirmed(at("confirm-clear"), () => conversation.clear()));
memory?.part("erase").addEventListener("click", () => askToErase(conversation.id));
for (const tab of root.querySelectorAll("#tabs button")) tab.addEventListener("click", () => view(tab.dataset.view));
for (const button of root.querySelectorAll("[data-new]")) button.addEventListener("click", () => show(null));
root.querySelector("[data-temporary]")?.addEventListener("click", openTemporary);
for (const button of root.querySelectorAll("[data-say]")) {
    button.addEventListener("click", () => {
        conversation.send([{kind: "text", text: button.dataset.say}]);
        composer.field.focus();
    });
}
at("messages").addEventListener("decide", event => conversation.decide(event.detail));
at("older").addEventListener("click", () => conversation.loadOlder());
at("newest").addEventListener("click", async () => {
    await conversation.toNewest();
    transcript.toEnd();
    composer.field.focus();
});
at("sign-out")?.addEventListener("submit", forgetAll);
at("later").addEventListener("click", () => conversation.loadNewer());
at("skip")?.addEventListener("click", () => composer.field.focus());
if (site.isPage) host.style.setProperty("--above", `${Math.round(host.getBoundingClientRect().top + scrollY)}px`);
if (at("colors")) offerColors(at("colors"));
if (site.isPage) window.addEventListener("popstate", () => open(openId(), openMessage()));
window.addEventListener("online", () => {
    if (at("problem").dataset.status === "0") showProblem(null);
    conversation.lookAgain();
});
document.addEventListener("visibilitychange", () => {
    if (!document.hidden) conversation.lookAgain();
});
hearTabs(id => {
    loadList();
    if (id === conversation.id) conversation.lookAgain();
});

keepTyped();
// At once, so that what is sent from now on belongs to it.
const opened = open(openId(), openMessage());
await loadList();
await opened;
