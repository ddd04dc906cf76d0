// The open conversation: its messages, its requests to the chat, and the streams of answers.

import {conversationPath, post, Refused, rest, resume, stop, WHOLE} from "./api.js";
import {withContent} from "./composer.js";
import {announce, text} from "./dom.js";
import {textOf, toMessages, toUiMessage} from "./messages.js";
import {Answer, chunks} from "./stream.js";

const PAGE = 50;
const MOST = 200; // messages in a page of the REST API
const TRIES = 4; // to reconnect to an answer

export class Conversation {
    id = null;
    isBusy = false;
    #rows = [];
    #older = null;
    #approvals = [];
    #fates = new Map();
    #isNew = false;
    #leaving = new AbortController();

    /** *page* has the parts of the page: transcript, memory, composer, and callbacks. */
    constructor(page) {
        this.page = page;
    }

    /** Open conversation *id*, or a new one for null. An answer in progress is shown from its beginning. */
    async open(id) {
        this.#leave();
        this.id = id;
        const {signal} = this.#leaving;
        await this.#guard(signal, async () => {
            await this.#loadHistory(signal);
            this.page.transcript.toEnd();
            await this.page.memory.load(this.id, this.#rows, signal);
            const response = id === null ? null : await resume(id, signal);
            if (response) await this.#follow(response, signal);
        });
    }

    /** Reload the history and the memory. */
    async refresh(signal = this.#leaving.signal) {
        await this.#loadHistory(signal);
        await this.page.memory.load(this.id, this.#rows, signal);
    }

    async loadOlder() {
        await this.#guard(this.#leaving.signal, async signal => {
            const page = await rest(this.#older, {signal});
            this.#rows = [...page.results.reverse(), ...this.#rows];
            this.#older = page.next;
            this.page.transcript.keepPlace(() => this.#show());
        });
    }

    /** Update the status of the messages from the memory panel. */
    setFates(fates) {
        this.#fates = fates;
        if (!this.isBusy) this.#show();
        else this.page.transcript.mark(this.#known());
    }

    async send(parts) {
        this.#isNew = this.id === null;
        if (this.#isNew) {
            this.id = crypto.randomUUID();
            this.page.onNamed(this.id);
        }
        this.page.onShown({isEmpty: false, hasOlder: this.#older !== null});
        this.page.transcript.showSent(parts);
        const message = toUiMessage(crypto.randomUUID(), parts);
        await this.#ask(() => ({trigger: "submit-message", message}));
    }

    async edit(message, words) {
        if (this.isBusy) return;
        const files = message.parts.filter(part => part.kind === "file");
        const textPart = {kind: "text", text: words};
        this.page.transcript.cut(message.sequences[0] - 1);
        this.page.transcript.showSent([textPart, ...files]);
        await this.#ask(async () => {
            const parts = [textPart, ...await Promise.all(files.map(withContent))];
            return {trigger: "submit-message", messageId: message.id, message: toUiMessage(message.id, parts)};
        });
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
        await this.#change("memory/", {method: "DELETE"}, text("cleared"));
    }

    async erase() {
        await this.#guard(this.#leaving.signal, async () => {
            await rest(conversationPath(this.id), {method: "DELETE"});
            announce(text("erased"));
            this.page.onErased();
        });
    }

    stop() {
        return this.#guard(this.#leaving.signal, () => stop(this.id));
    }

    #leave() {
        this.#leaving.abort();
        this.#leaving = new AbortController();
        this.#setBusy(false);
        [this.#rows, this.#older, this.#approvals, this.#fates] = [[], null, [], new Map()];
    }

    async #change(path, options, words = "") {
        await this.#guard(this.#leaving.signal, async signal => {
            await rest(`${conversationPath(this.id)}${path}`, {...options, signal});
            await this.refresh(signal);
            if (words) announce(words);
        });
    }

    /** Post what *body* returns, and show the answer. */
    async #ask(body) {
        const [{signal}, {id}] = [this.#leaving, this];
        this.#setBusy(true);
        const answer = async () => this.#follow(await post({id, ...await body()}, signal), signal);
        await this.#guard(signal, answer, () => this.#settle(signal));
    }

    /** Show an answer until its end; after a lost connection, reconnect, since the site continues to generate it. */
    async #follow(response, signal) {
        if (signal.aborted) return;
        this.#setBusy(true);
        for (let tries = 1; response; tries += 1) {
            try {
                await this.#listen(response, signal);
                break;
            } catch (error) {
                if (signal.aborted || tries === TRIES) throw error;
                await new Promise(resolve => { setTimeout(resolve, 250 * 2 ** tries); });
                response = await resume(this.id, signal);
            }
        }
        await this.#settle(signal);
    }

    async #listen(response, signal) {
        const {transcript} = this.page;
        const answer = new Answer();
        let [frame, isStored] = [0, false];
        const show = () => {
            frame = 0;
            if (!signal.aborted) transcript.showLive(answer);
        };
        show();
        for await (const chunk of chunks(response)) {
            if (chunk.type !== "start" && !isStored) {
                isStored = true;
                announce(text("answering"));
                this.#onStored(signal).catch(() => {}); // the end of the answer reloads everything
            }
            answer.add(chunk);
            frame ||= requestAnimationFrame(show);
        }
        cancelAnimationFrame(frame);
        show();
        if (answer.state === "begun") throw new Refused(text("offline"));
        if (answer.state === "failed") this.page.onProblem(answer.error);
        else if (answer.parts.some(part => part.state === "waiting")) announce(text("may_run"));
        else announce(text(answer.state === "stopped" ? "stopped" : "answered"));
    }

    /** The answer has started: the question is stored, and may have evicted others. */
    async #onStored(signal) {
        if (this.#isNew) {
            this.#isNew = false;
            this.page.onChange();
        }
        await this.page.memory.load(this.id, this.#rows, signal);
    }

    /** Replace the streamed messages with the stored ones. */
    async #settle(signal) {
        if (signal.aborted) return;
        try {
            await this.refresh(signal);
            this.page.onChange();
        } finally {
            if (!signal.aborted) this.#setBusy(false);
        }
    }

    /** Run an action, and show its error, unless another conversation was opened in the meantime. */
    async #guard(signal, action, otherwise = async () => {}) {
        this.page.onProblem("");
        try {
            await action(signal);
        } catch (error) {
            if (signal.aborted) return;
            this.page.onProblem(error instanceof Refused ? error.message : text("failed"));
            if (!(error instanceof Refused)) console.error(error);
            await otherwise().catch(() => {}); // the first error is the one to show
        }
    }

    async #loadHistory(signal) {
        const size = Math.min(MOST, Math.max(PAGE, this.#rows.length));
        const page = this.id === null ? null : await this.#read(`messages/?page_size=${size}&${WHOLE}`, signal);
        this.#rows = page?.results.reverse() ?? [];
        this.#older = page?.next ?? null;
        // Only an answer that calls a tool can wait for an approval.
        const calls = this.#rows.findLast(row => row.message?.type !== "TOOL_EXECUTION_RESULT")?.message?.toolExecutionRequests;
        this.#approvals = calls?.length ? (await this.#read("approvals/", signal))?.approvals ?? [] : [];
        this.#show();
    }

    async #read(path, signal) {
        try {
            return await rest(`${conversationPath(this.id)}${path}`, {signal});
        } catch (error) {
            if (error.status === 404) return null; // it has no messages yet
            throw error;
        }
    }

    #setBusy(isBusy) {
        this.isBusy = isBusy;
        this.page.onBusy(isBusy);
    }

    #known() {
        // For older messages, only whether they are in the memory is known.
        const rows = this.#rows.map(row => [row.sequence, {isSent: row.in_memory, reason: "evicted"}]);
        return new Map([...rows, ...this.#fates]);
    }

    #show() {
        const messages = toMessages(this.#rows, this.#approvals);
        this.page.transcript.show(messages, this.#known());
        this.page.onShown({isEmpty: !messages.length, hasOlder: this.#older !== null});
    }
}
