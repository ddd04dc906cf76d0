// The AI SDK's UI message stream: chunks of JSON in server-sent events, joined to the parts of an answer.

/** Yield the chunks of a response. */
export async function* chunks(response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    try {
        for (;;) {
            const {done, value} = await reader.read();
            if (done) return;
            const lines = (rest + value).split("\n");
            rest = lines.pop();
            for (const line of lines) {
                // Each event is one line; other lines are empty, or comments that keep the connection open.
                if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
            }
        }
    } finally {
        reader.cancel().catch(() => {});
    }
}

/**
 * An answer in progress. Its parts are like those of a stored message, see messages.js; *state* is "begun", "finished",
 * "stopped" or "failed"; *error* describes the failure.
 */
export class Answer {
    parts = [];
    metadata = {};
    state = "begun";
    error = "";
    #open = new Map();

    add(chunk) {
        const [kind, step] = /^(text|reasoning)-(start|delta|end)$/.exec(chunk.type)?.slice(1) ?? [];
        if (kind) this.#say(kind, step, chunk);
        else if (chunk.type.startsWith("tool-")) this.#call(chunk);
        else if (chunk.type === "file") this.parts.push({kind: "file", mediaType: chunk.mediaType, url: chunk.url});
        else if (chunk.type === "finish-step") this.#open.clear();
        else if (chunk.type === "finish") this.state = "finished";
        else if (chunk.type === "abort") this.state = "stopped";
        else if (chunk.type === "error") [this.state, this.error] = ["failed", chunk.errorText];
        Object.assign(this.metadata, chunk.messageMetadata);
        for (const call of this.parts.filter(part => part.state === "waiting")) {
            call.asks = this.metadata.asks?.[call.id] ?? "";
            if (this.metadata.waitsForOthers?.includes(call.id)) call.state = "others";
        }
    }

    #say(kind, step, chunk) {
        const key = `${kind} ${chunk.id}`;
        if (step === "start") {
            const part = {kind, text: "", isOpen: true};
            this.parts.push(part);
            this.#open.set(key, part);
        } else if (step === "delta") {
            this.#open.get(key).text += chunk.delta;
        } else {
            this.#open.get(key).isOpen = false;
        }
    }

    #call(chunk) {
        let call = this.parts.find(part => part.kind === "tool" && part.id === chunk.toolCallId);
        if (!call) {
            if (!chunk.toolName) return; // a result of a call in an answer that has waited, which is shown above
            call = {kind: "tool", id: chunk.toolCallId, name: chunk.toolName, input: "", output: "", state: "running"};
            this.parts.push(call);
        }
        if (chunk.type === "tool-input-delta") call.input += chunk.inputTextDelta;
        else if (chunk.type === "tool-input-available") call.input = JSON.stringify(chunk.input);
        else if (chunk.type === "tool-output-available") [call.state, call.output] = ["done", shown(chunk.output)];
        else if (chunk.type === "tool-approval-request") call.state = "waiting"; // can be decided once all is stored
        else if (chunk.type.endsWith("-error")) [call.state, call.output] = ["failed", chunk.errorText];
    }
}

function shown(output) {
    return typeof output === "string" ? output : JSON.stringify(output);
}
