// Rows of the REST API to messages as the page shows them.

/**
 * What a user said, what the assistant did until the user's next message, or a system message.
 *
 * {role, sequences, parts, places, isComplete, metadata}; a part is {kind: "text" | "reasoning", text}, {kind: "tool", id,
 * name, input, output, state} or {kind: "file", mediaType, url}. *places* are those of its rows that have alternatives.
 */
export function toMessages(rows) {
    const messages = [];
    for (const row of rows) {
        const role = roleOf(row.message);
        const last = messages.at(-1);
        const message = role === "assistant" && last?.role === role ? last : begin(messages, role, row);
        message.sequences.push(row.sequence);
        message.isComplete &&= row.is_complete;
        if (row.place) message.places.push({sequence: row.sequence, ...row.place});
        addParts(message.parts, row.message);
        if (role === "assistant") addMetadata(message.metadata, row.metadata);
    }
    return messages;
}

/** The id by which the chat knows a row: what an edit adds to the id of the first version is the site's affair. */
function idOf(row) {
    return (row.client_message_id ?? `message-${row.sequence}`).split("#edit-")[0];
}

function roleOf(said) {
    if (said === null) return "hidden";
    return {USER: "user", AI: "assistant", TOOL_EXECUTION_RESULT: "assistant", SYSTEM: "system"}[said.type] ?? "other";
}

function begin(messages, role, row) {
    const message = {role, id: idOf(row), sequences: [], parts: [], places: [], isComplete: true, metadata: {}};
    messages.push(message);
    return message;
}

function addParts(parts, said) {
    switch (said?.type) {
        case "SYSTEM":
            parts.push({kind: "text", text: said.text});
            break;
        case "USER":
            parts.push(...contents(said));
            break;
        case "AI":
            if (said.thinking) parts.push({kind: "reasoning", text: said.thinking});
            if (said.text) parts.push({kind: "text", text: said.text});
            for (const call of said.toolExecutionRequests ?? []) {
                // Without a result in the history, it has none any more.
                parts.push({kind: "tool", id: call.id, name: call.name, input: call.arguments ?? "", output: "", state: "failed"});
            }
            break;
        case "TOOL_EXECUTION_RESULT": {
            const call = parts.findLast(part => part.kind === "tool" && part.id === said.id);
            const output = contents(said).filter(part => part.kind === "text").map(part => part.text).join("\n");
            const answered = {kind: "tool", id: said.id, name: said.toolName, input: "", output, state: said.isError ? "failed" : "done"};
            if (call) Object.assign(call, {output, state: answered.state});
            else parts.push(answered);
            break;
        }
        case "CUSTOM":
            parts.push({kind: "text", text: JSON.stringify(said.attributes)});
    }
}

function contents(said) {
    return (said.contents ?? []).filter(Boolean).map(content => {
        if (content.type === "TEXT") return {kind: "text", text: content.text};
        const file = content.image ?? content.audio ?? content.video ?? content.pdfFile ?? {};
        const mediaType = file.mimeType ?? {IMAGE: "image/*", AUDIO: "audio/*", VIDEO: "video/*", PDF: "application/pdf"}[content.type];
        return {kind: "file", mediaType, url: file.url ?? (file.base64Data ? `data:${mediaType};base64,${file.base64Data}` : "")};
    });
}

function addMetadata(metadata, stored) {
    const {model, usage, partial} = stored ?? {};
    if (model) metadata.model = model;
    if (partial) metadata.partial = true;
    for (const name of ["input", "output"]) {
        if (usage?.[name] !== undefined) metadata[name] = (metadata[name] ?? 0) + usage[name];
    }
}

/** What a user says, as the chat takes it. */
export function toUiMessage(id, parts) {
    const said = parts.map(({kind, text, mediaType, url}) => (kind === "text" ? {type: kind, text} : {type: kind, mediaType, url}));
    return {id, role: "user", parts: said};
}

/** What a message says, without its calls and files. */
export function textOf(message) {
    return message.parts.filter(part => part.kind === "text").map(part => part.text).join("\n\n");
}
