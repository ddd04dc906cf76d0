// Conversion of the REST API's rows to the messages that the page shows.

/**
 * A user's message, everything of the assistant until the user's next message, or a system message.
 *
 * {role, sequences, parts, places, hasEnded, metadata}; a part is {kind: "text" | "reasoning", text}, {kind: "tool", id,
 * name, input, output, state, approval, asks} or {kind: "file", mediaType, url, name}. *places* are its rows with alternatives,
 * *written* the sequence of its last row that the model wrote, *pinned* that of a row that is pinned. *others* is what the
 * calls want to do that wait for somebody else, by the id of the answer and of the call.
 */
export function toMessages(rows, approvals = [], others = new Map()) {
    const [messages, first] = [[], []];
    let isComplete = true; // whether the last question has an answer that has ended
    for (const row of rows) {
        if (!row.message) continue; // the user may not read it
        const role = roleOf(row.message);
        const last = messages.at(-1);
        if (role === "system" && !last) { // it is in the memory panel, and its versions are those of the first question
            if (row.place) first.push({sequence: row.sequence, ...row.place});
            continue;
        }
        const author = row.message.attributes?.author?.name ?? null; // a person, and not the model
        const goesOn = role === "assistant" && last?.role === role && last.author === author;
        const message = goesOn ? last : Object.assign(begin(messages, role, row), {author});
        message.sequences.push(row.sequence);
        message.places.push(...first.splice(0));
        if (role === "user") isComplete = row.is_complete;
        else message.hasEnded = isComplete && row.message.type === "AI" && !row.message.toolExecutionRequests?.length;
        if (row.place) message.places.push({sequence: row.sequence, ...row.place});
        addParts(message.parts, row.message);
        if (row.message.type === "AI") message.written = row.sequence;
        if (row.is_pinned) message.pinned ??= row.sequence;
        for (const waiting of approvals.filter(each => each.sequence === row.sequence)) {
            const call = message.parts.findLast(part => part.kind === "tool" && part.id === waiting.call_id);
            if (call) Object.assign(call, {state: "waiting", approval: waiting.id, asks: waiting.asks});
        }
        for (const call of message.parts) {
            const asks = others.get(message.id)?.get(call.id);
            if (call.state === "unknown" && asks !== undefined) Object.assign(call, {state: "others", asks});
        }
        if (role === "assistant") addMetadata(message.metadata, row.metadata ?? {});
        else if (row.metadata?.rejected) message.metadata.rejected = row.metadata.rejected;
    }
    return messages;
}

/** Return a row's id for the chat: that of its first version, without the site's suffix for edits. */
export function idOf(row) {
    return (row.client_message_id ?? `message-${row.sequence}`).split("#edit-")[0];
}

function roleOf(stored) {
    return {USER: "user", AI: "assistant", TOOL_EXECUTION_RESULT: "assistant", SYSTEM: "system"}[stored.type] ?? "other";
}

function begin(messages, role, row) {
    const message = {role, id: idOf(row), sequences: [], parts: [], places: [], hasEnded: true, metadata: {}};
    messages.push(message);
    return message;
}

function addParts(parts, stored) {
    switch (stored?.type) {
        case "SYSTEM":
            parts.push({kind: "text", text: stored.text});
            break;
        case "USER":
            parts.push(...contents(stored));
            break;
        case "AI":
            if (stored.thinking) parts.push({kind: "reasoning", text: stored.thinking});
            if (stored.text) parts.push({kind: "text", text: stored.text});
            for (const call of stored.toolExecutionRequests ?? []) {
                // It has no result yet; what follows may be one.
                parts.push({kind: "tool", id: call.id, name: call.name, input: call.arguments ?? "", output: "", state: "unknown"});
            }
            break;
        case "TOOL_EXECUTION_RESULT": {
            const call = parts.findLast(part => part.kind === "tool" && part.id === stored.id);
            const output = contents(stored).filter(part => part.kind === "text").map(part => part.text).join("\n");
            const answered = {kind: "tool", id: stored.id, name: stored.toolName, input: "", output, state: stored.isError ? "failed" : "done"};
            if (call) Object.assign(call, {output, state: answered.state});
            else parts.push(answered);
            break;
        }
        case "CUSTOM":
            parts.push({kind: "text", text: JSON.stringify(stored.attributes)});
    }
}

function contents(stored) {
    const fields = stored.attributes?.ui?.parts ?? []; // what the chat keeps of a page's parts beside their contents
    return (stored.contents ?? []).filter(Boolean).map((content, index) => {
        if (content.type === "TEXT" && /^data:/.test(fields[index]?.url)) return textFile(fields[index], content.text);
        if (content.type === "TEXT") return {kind: "text", text: content.text};
        const file = content.image ?? content.audio ?? content.video ?? content.pdfFile ?? {};
        const mediaType = file.mimeType ?? {IMAGE: "image/*", AUDIO: "audio/*", VIDEO: "video/*", PDF: "application/pdf"}[content.type];
        const url = file.url ?? (file.base64Data ? `data:${mediaType};base64,${file.base64Data}` : "");
        return {kind: "file", mediaType, url, name: fields[index]?.filename};
    });
}

/** Return the file of which the chat has made the text that the model was *sent*; *part* has all but its data. */
function textFile({mediaType, url, filename}, sent) {
    const content = sent.slice(sent.indexOf(">\n") + 2, -"\n</file>".length);
    const bytes = Array.from(new TextEncoder().encode(content), byte => String.fromCharCode(byte));
    return {kind: "file", mediaType, url: url + btoa(bytes.join("")), name: filename};
}

function addMetadata(metadata, {model, usage, partial, feedback, shortened, ...stored}) {
    if (model) metadata.model = model;
    if (partial) metadata.partial = true;
    if ((stored.finish_reason ?? stored.finishReason) === "length") metadata.isCut = true;
    if (shortened) metadata.shortened = {...metadata.shortened, ...shortened};
    if (feedback) metadata.rating = feedback.rating;
    for (const name of ["input", "output"]) {
        if (usage?.[name] !== undefined) metadata[name] = (metadata[name] ?? 0) + usage[name];
    }
}

/** Return a user's message in the format of the chat. */
export function toUiMessage(id, parts) {
    const sent = parts.map(({kind, text, mediaType, url, name}) =>
        kind === "text" ? {type: kind, text} : {type: kind, mediaType, url, ...(name ? {filename: name} : {})});
    return {id, role: "user", parts: sent};
}

/** Whether a call in *message* waits for a person. */
export function waits(message) {
    return message.parts.some(part => part.state === "waiting" || part.state === "others");
}

/** Return the text of a message, without its calls and files. */
export function textOf(message) {
    return message.parts.filter(part => part.kind === "text").map(part => part.text).join("\n\n");
}
