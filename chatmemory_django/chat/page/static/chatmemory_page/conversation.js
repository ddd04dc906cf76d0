// The open conversation: its messages, its requests to the chat, and the answers.

import {about, conversationPath, isOfPerson, post, Refused, rest, resume, stop, waitingForOthers, WHOLE} from "./api.js";
import {announce, text} from "./dom.js";
import {dropUnsent, keepUnsent, unsentOf} from "./drafts.js";
import {withContent} from "./files.js";
import {follow} from "./following.js";
import {idOf, textOf, toMessages, toUiMessage, waits} from "./messages.js";
import {questionOf} from "./parts.js";
import {chunks} from "./stream.js";
import {tellTabs} from "./tabs.js";

const PAGE = 50;
const MOST = 200; // messages in a page of the REST API
const AROUND = 20; // sequences shown behind a message that is opened
const PAUSE = 3_000; // milliseconds until a stream of what people write is opened again
const LONGEST_PAUSE = 60_000; // the same where the site cannot be reached, or refuses it
const UNFIT = [400, 413]; // the status of a refusal because of the message itself: it has to be changed

export class Conversation {
    id = null;
    isBusy = false;
    #about = null;
    #rows = [];
    #older = null;
    #end = null; // the sequence behind the last message shown; null if that is the newest one
    #approvals = [];
    #others = new Map();
    #streamed = null; // the id of an answer in progress whose stream has all of it
    #fates = new Map();
    #unsent = null;
    #isSending = false;
    #isWatched = false;
    #asks = 0; // what was asked while something loads is newer than that
    #leaving = new AbortController();

    /** *page* has the parts of the page: transcript, memory, composer, and callbacks. */
    constructor(page) {
        this.page = page;
    }

    /** The title; empty if there is none. */
    get title() {
        return this.#about?.title ?? "";
    }

    /** The name of the assistant to which it belongs; null if it has not begun, or no assistant has a name. */
    get assistant() {
        return this.#about?.total_messages ? this.#about.assistant ?? null : null;
    }

    /** From when on the site erases the conversation, if nothing is added before; null if it is kept. */
    get keptUntil() {
        return this.#about?.kept_until ?? null;
    }

    /**
     * Open conversation *id*, or a new one for null, at its end, or *at* the message with that sequence.
     *
     * An answer in progress is shown from its beginning.
     */
    async open(id, at = null) {
        this.#leave();
        this.id = id;
        this.#unsent = unsentOf(id);
        this.#end = at === null ? null : at + AROUND;
        const asks = this.#asks;
        await this.#guard(async signal => {
            await this.#loadHistory(signal);
            if (asks !== this.#asks) return undefined; // something was sent meanwhile, and is followed
            if (id !== null && !this.#about && !this.#unsent) return this.page.onMissing(id);
            if (at === null || !this.page.transcript.showAt(at)) this.page.transcript.toEnd();
            return this.#end === null ? this.#goOn(signal) : this.#loadMemory(signal);
        });
    }

    /** Show the newest messages, if the conversation was opened at an earlier one. */
    async toNewest() {
        if (this.#end === null) return;
        this.#end = null;
        await this.#guard(signal => this.#catchUp(signal));
    }

    /** Show what another tab, or another device, has changed or erased. */
    async lookAgain() {
        if (this.id === null || this.isBusy || this.#end !== null) return;
        const {signal} = this.#leaving;
        const now = await about(this.id, signal).catch(() => this.#about);
        if (signal.aborted || this.isBusy) return;
        if (this.#about && !now) this.page.onMissing(this.id, {wasShown: true});
        else if (this.#rows.at(-1)?.message?.type === "USER" || JSON.stringify(now) !== JSON.stringify(this.#about)) { // or is being answered
            await this.#catchUp(signal).catch(() => {}); // nobody has asked for it
        }
    }

    async loadOlder() {
        await this.#guard(async signal => {
            const page = await rest(this.#older.replace(/page_size=\d+/, `page_size=${MOST}`), {signal});
            this.#rows = [...page.results.reverse(), ...this.#rows];
            this.#older = page.next;
            this.page.transcript.keepPlace(() => this.#show({keepsTail: this.isBusy}));
        });
    }

    /** Load what follows, if the conversation was opened at an earlier message. */
    async loadNewer() {
        await this.#guard(async signal => {
            const after = `after=${this.#rows.at(-1).sequence}&ordering=sequence&page_size=${MOST}`;
            const page = await rest(`${conversationPath(this.id)}messages/?${after}&${WHOLE}`, {signal});
            this.#rows = [...this.#rows, ...page.results];
            this.#end = page.next === null ? null : this.#rows.at(-1).sequence + 1;
            this.#show({follows: false});
            await (this.#end === null ? this.#catchUp(signal) : this.#loadMemory(signal));
        });
    }

    /** Update the status of the messages from the memory panel. */
    setFates(fates) {
        this.#fates = fates;
        this.page.transcript.mark(this.#known());
    }

    /** Send a message of these *parts*, and with it one that could not be sent before. */
    async send(parts) {
        if (this.#end !== null) { // it comes behind the newest message, which is shown first
            this.#setBusy(true);
            this.#end = null;
            await this.#guard(signal => this.#loadHistory(signal));
        }
        if (this.id === null) this.id = crypto.randomUUID();
        this.page.onNamed(this.id);
        await this.#post({id: crypto.randomUUID(), ...this.#unsent, parts: [...this.#unsent?.parts ?? [], ...parts]});
    }

    /** Send a message again that could not be sent, unless it has arrived. */
    async sendAgain() {
        if (this.isBusy) return;
        const isReached = await this.#guard(signal => this.#catchUp(signal));
        if (isReached && this.#unsent) await this.#post(this.#unsent);
    }

    /** Put a message that could not be sent back into the message field. */
    takeBack() {
        const {parts} = this.#unsent;
        this.#drop();
        this.#show();
        this.page.composer.takeBack(parts);
    }

    async edit(message, words) {
        await this.#replace(message, words, message.parts.filter(part => part.kind === "file"));
    }

    /** Send a message that the model did not accept again, without its files. */
    async sendWithoutFiles(message) {
        await this.#replace(message, textOf(message), []);
    }

    async #replace(message, words, files) {
        if (this.isBusy) return;
        const textPart = {kind: "text", text: words};
        this.page.transcript.cut(message.sequences[0] - 1);
        this.page.transcript.showSent([textPart, ...files]);
        const isAccepted = await this.#ask(async () => {
            const parts = [textPart, ...await Promise.all(files.map(withContent))];
            return {trigger: "submit-message", messageId: message.id, message: toUiMessage(message.id, parts)};
        });
        if (!isAccepted) this.page.transcript.edit(message.id, words);
    }

    /** Regenerate an answer, or answer a question that has no answer. */
    async regenerate(message) {
        if (this.isBusy) return;
        this.page.transcript.cut(message.role === "user" ? message.sequences[0] : message.sequences[0] - 1);
        await this.#ask(() => ({trigger: "regenerate-message", messageId: message.id}));
    }

    /** Approve or deny the call of a tool for which the answer waits. */
    async decide({id, approved}) {
        if (this.isBusy) return;
        const part = {type: "tool-approval", state: "approval-responded", approval: {id, approved}};
        await this.#ask(() => ({trigger: "submit-message", message: {id, role: "assistant", parts: [part]}}));
    }

    /** Store what the user thinks of an answer: a rating of 5 or 1, or null, and why. */
    async rate(sequence, rating, reason = "") {
        const feedback = rating === null ? null : {rating, ...(reason ? {reason} : {})};
        await this.#change(`messages/${sequence}/`, {method: "PATCH", body: {metadata: {feedback}}}, text("rated"));
    }

    /** Keep a message in the memory, whatever leaves it, or do so no longer. */
    async pin(sequence, isPinned) {
        const method = isPinned ? "POST" : "DELETE";
        await this.#change(`messages/${sequence}/pin/`, {method}, text(isPinned ? "message_pinned" : "message_unpinned"));
    }

    async switchTo(to) {
        if (this.isBusy) return;
        await this.#change("memory/switch/", {method: "POST", body: {to}});
    }

    /** Return all versions of a message by sequence: [{sequence, words, isCurrent}]. */
    async versions(sequence) {
        const [others, current] = await Promise.all(
            ["alternatives/", ""].map(what => rest(`${conversationPath(this.id)}messages/${sequence}/${what}?${WHOLE}`)),
        );
        return [...others.results, current].sort((one, other) => one.sequence - other.sequence).map(row => ({
            sequence: row.sequence,
            words: textOf(toMessages([row])[0]) || row.message?.toolExecutionRequests?.map(call => call.name).join(", ") || "…",
            isCurrent: row.sequence === sequence,
        }));
    }

    async clear() {
        await this.#change("memory/", {method: "DELETE"}, text("memory_cleared"));
    }

    stop() {
        return this.#guard(() => stop(this.id));
    }

    #leave() {
        this.#leaving.abort();
        this.#leaving = new AbortController();
        this.#setBusy(false);
        this.page.onStatus("");
        [this.#about, this.#rows, this.#older, this.#approvals, this.#fates] = [null, [], null, [], new Map()];
        this.#others = new Map();
        this.#end = null;
        this.#isSending = this.#isWatched = false;
        this.page.onHandover(null);
    }

    async #change(path, options, words = "") {
        await this.#guard(async signal => {
            await rest(`${conversationPath(this.id)}${path}`, {...options, signal});
            await this.#refresh(signal);
            tellTabs(this.id);
            if (words) announce(words);
        });
    }

    async #post(message) {
        this.#unsent = message;
        this.#isSending = true;
        keepUnsent(this.id, message);
        this.page.onShown({isEmpty: false, hasOlder: this.#older !== null, hasNewer: false});
        this.page.transcript.showSent(message.parts);
        await this.#ask(() => ({trigger: "submit-message", message: toUiMessage(message.id, message.parts)}));
    }

    /** Post what *body* returns, and show the answer. Return whether the site has accepted it. */
    async #ask(body) {
        const [{signal}, {id}] = [this.#leaving, this];
        this.page.onProblem(null);
        this.#asks += 1;
        this.#setBusy(true);
        try {
            await this.#follow(await post({id, ...this.page.chosen(), ...await body()}, signal), signal, {isOurs: true});
        } catch (error) {
            if (!signal.aborted) await this.#recover(error, signal);
            return false;
        }
        return true;
    }

    /** Show why a message was refused, what the site has of it, and the message itself if it has nothing. */
    async #recover(error, signal) {
        const sent = this.#isSending ? this.#unsent : null;
        this.#isSending = false;
        this.page.onProblem(error);
        if (sent && UNFIT.includes(error.status)) {
            this.#drop();
            this.page.composer.takeBack(sent.parts);
        }
        try {
            await this.#catchUp(signal);
            if (sent && error.isOutage && !this.#unsent) this.page.onProblem(null); // it has arrived
        } catch {
            if (!signal.aborted) this.#show(); // the first error is the one to show
        } finally {
            if (!signal.aborted) this.#setBusy(false);
        }
    }

    /** Load what is stored, and follow an answer in progress. */
    async #catchUp(signal) {
        await this.#loadHistory(signal);
        await this.#goOn(signal);
    }

    async #goOn(signal) {
        const asks = this.#asks;
        await this.#loadMemory(signal);
        return this.#listen(signal, asks);
    }

    /** Follow an answer in progress or, without one, show what people write from now on. */
    async #listen(signal, asks = this.#asks) {
        const last = this.#rows.at(-1);
        const seen = last ? last.client_message_id ?? `message-${last.sequence}` : null;
        const leaving = new AbortController();
        signal.addEventListener("abort", () => leaving.abort(), {once: true});
        const response = this.#about || this.#unsent ? await resume(this.id, leaving.signal, seen, true) : null;
        if (!response) return undefined;
        if (isOfPerson(response)) {
            if (this.#isWatched) return response.body.cancel();
            this.#watch(response, signal, leaving); // as long as the page is open
            return undefined;
        }
        // The question may have been stored since the history was loaded.
        if (this.#rows.at(-1)?.message?.type !== "USER") await this.#loadHistory(signal).catch(() => {});
        if (asks !== this.#asks) return response.body.cancel();
        this.page.onStatus(text("elsewhere"));
        return this.#follow(response, signal);
    }

    /** Show who answers, and what is new. While the assistant does, a hidden page closes the stream: connections are few. */
    async #watch(response, signal, leaving) {
        this.#isWatched = true;
        let isIdle = true;
        const leaveHidden = () => { if (document.hidden && isIdle) leaving.abort(); };
        document.addEventListener("visibilitychange", leaveHidden);
        try {
            for await (const {type, data} of chunks(response)) {
                if (signal.aborted) return;
                if (type === "data-handover") {
                    isIdle = data.state === "assistant";
                    this.page.onHandover(data);
                    leaveHidden();
                }
                if (type !== "data-message" || this.isBusy || this.#rows.some(row => idOf(row) === data.id)) continue;
                await this.#refresh(signal);
                if (data.role === "assistant") announce(text("answered"));
            }
        } catch {
            // The connection is lost; it is opened again.
        } finally {
            document.removeEventListener("visibilitychange", leaveHidden);
            if (!signal.aborted) this.#isWatched = false;
        }
        this.#watchAgain(signal, isIdle);
    }

    /** Listen again after a *pause* or, if the assistant answers, once somebody looks at the page. */
    async #watchAgain(signal, isIdle = false, pause = PAUSE) {
        await new Promise(resolve => { setTimeout(resolve, pause); });
        if (isIdle && document.hidden) await new Promise(resolve => { document.addEventListener("visibilitychange", resolve, {once: true}); });
        if (signal.aborted || this.#isWatched) return;
        if (this.isBusy) this.#watchAgain(signal, isIdle);
        else await this.#listen(signal).catch(() => this.#watchAgain(signal, isIdle, Math.min(2 * pause, LONGEST_PAUSE)));
    }

    /** Show an answer until its end. *isOurs*: this tab has asked for it. */
    async #follow(response, signal, {isOurs = false} = {}) {
        if (signal.aborted) return;
        this.#setBusy(true);
        const {transcript, onProblem, onStatus} = this.page;
        let [frame, isStored, answer] = [0, false, null];
        const show = () => {
            frame = 0;
            if (!signal.aborted) transcript.showLive(answer);
        };
        try {
            const whole = await follow(response, this.id, signal, {
                onLost: isLost => onStatus(isLost ? text("reconnecting") : ""),
                onChange: (now, chunk) => {
                    answer = now;
                    if (chunk?.type === "data-handover") this.page.onHandover(chunk.data);
                    if (chunk?.type === "start") this.#hideStored(chunk);
                    if (chunk && chunk.type !== "start" && !isStored) {
                        isStored = true;
                        announce(text("answering"));
                        this.#onStored(signal, isOurs).catch(() => {}); // the end of the answer reloads everything
                    }
                    frame ||= requestAnimationFrame(show);
                },
            });
            cancelAnimationFrame(frame);
            show();
            onStatus("");
            if (isOurs && this.#unsent && whole && whole.state !== "failed") this.#drop();
            const waiting = whole?.parts.find(part => part.state === "waiting");
            if (whole?.state === "failed") onProblem(new Refused(whole.error, null));
            else if (waiting) announce(questionOf(waiting));
            else if (whole?.state === "finished" && !whole.parts.length) announce(text("person_reads"));
            else announce(text(whole?.state === "stopped" ? "stopped" : "answered"));
            [this.#isSending, this.#streamed] = [false, null];
            if (whole && isOurs) tellTabs(this.id);
            // If that fails, the answer stays as it was streamed.
            await this.#refresh(signal).catch(error => { if (!signal.aborted) onProblem(error); });
            this.page.onChange();
            this.page.onAnswered();
        } finally {
            cancelAnimationFrame(frame);
            this.#streamed = null;
            if (!signal.aborted) this.#setBusy(false);
        }
        if (!this.#isWatched && !signal.aborted) this.#listen(signal).catch(() => this.#watchAgain(signal));
    }

    /** Hide what is stored of an answer whose stream begins with *start*: the stream has all of it, unless it has waited. */
    #hideStored({messageId, messageMetadata}) {
        this.#streamed = messageMetadata?.createdAt ? messageId : null;
        const stored = toMessages(this.#rows).findLast(message => message.id === this.#streamed);
        if (stored) this.page.transcript.cut(stored.sequences[0] - 1);
    }

    /** The answer has started: the question is stored, and may have evicted others. */
    async #onStored(signal, isOurs) {
        if (isOurs) tellTabs(this.id);
        if (this.#about === null) this.page.onChange();
        this.#about ??= await about(this.id, signal);
        await this.#loadMemory(signal);
    }

    #loadMemory(signal) {
        return this.page.memory?.load(this.#about, this.#rows, signal, this.#waiting());
    }

    /** Return the sequences of the messages whose calls wait for a person. */
    #waiting() {
        return new Set(toMessages(this.#rows, this.#approvals, this.#others).filter(waits).flatMap(message => message.sequences));
    }

    /** Run an action, and show its error, unless another conversation was opened in the meantime. */
    async #guard(action) {
        const {signal} = this.#leaving;
        this.page.onProblem(null);
        try {
            await action(signal);
            return true;
        } catch (error) {
            if (!signal.aborted) this.page.onProblem(error);
            return false;
        }
    }

    async #refresh(signal) {
        await this.#loadHistory(signal);
        await this.#loadMemory(signal);
    }

    async #loadHistory(signal) {
        const asks = this.#asks;
        // The site does not know a conversation before its first message.
        const known = this.id === null ? null : await about(this.id, signal);
        const size = Math.min(MOST, Math.max(PAGE, this.#rows.length));
        const until = this.#end === null ? "" : `&before=${this.#end}`;
        const page = known && await rest(`${conversationPath(this.id)}messages/?page_size=${size}${until}&${WHOLE}`, {signal});
        const rows = page?.results.reverse() ?? [];
        if (this.#end !== null && (rows.at(-1)?.sequence ?? 0) < this.#end - 1) this.#end = null; // nothing is behind it
        // Only a call without a result can wait for an approval.
        const isOpen = toMessages(rows).some(message => message.parts.some(part => part.state === "unknown"));
        const waiting = isOpen ? await rest(`${conversationPath(this.id)}approvals/`, {signal}) : null;
        this.#others = isOpen ? await waitingForOthers(this.id, signal) : new Map();
        [this.#about, this.#rows, this.#older] = [known, rows, page?.next ?? null];
        this.#approvals = waiting?.results ?? [];
        if (this.#unsent && rows.some(row => isStoredAs(this.#unsent, row))) this.#drop();
        this.#show({keepsTail: asks !== this.#asks});
    }

    #drop() {
        this.#unsent = null;
        dropUnsent(this.id);
    }

    #setBusy(isBusy) {
        this.isBusy = isBusy;
        this.page.onBusy(isBusy);
    }

    #known() {
        if (!this.page.memory) return new Map(); // nothing explains it
        // For older messages, only whether they are in the memory is known.
        const rows = this.#rows.map(row => [row.sequence, {isSent: row.in_memory, reason: "evicted"}]);
        return new Map([...rows, ...this.#fates]);
    }

    #show(options = {}) {
        const messages = toMessages(this.#rows, this.#approvals, this.#others).filter(message => message.id !== this.#streamed);
        this.page.transcript.show(messages, this.#known(), options);
        if (this.#unsent && !this.#isSending) this.page.transcript.showUnsent(this.#unsent.parts);
        this.page.onShown({isEmpty: !messages.length && !this.#unsent, hasOlder: this.#older !== null, hasNewer: this.#end !== null});
    }
}

/** Whether *row* is the message *unsent* as the site has stored it. */
function isStoredAs(unsent, row) {
    return idOf(row) === unsent.id && textOf(toMessages([row])[0]) === textOf(unsent);
}
