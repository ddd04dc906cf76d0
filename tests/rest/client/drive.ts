// Drives the live server with the client that is generated from its schema: begin, add, read, clear, erase.
import assert from "node:assert/strict";
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

const { BASE_URL, TOKEN } = process.env;
const client = createClient<paths>({ baseUrl: BASE_URL, headers: { Authorization: `Token ${TOKEN}` } });

const begun = await client.POST("/api/conversations/", { body: { title: "Where is my parcel?" } });
assert(begun.data);
const params = { path: { memory_id: begun.data.memory_id } };

const said: components["schemas"]["ChatMessage"][] = [
  { type: "SYSTEM", text: "You help with orders." },
  { type: "USER", contents: [{ type: "TEXT", text: "Where is my parcel?" }] },
  { type: "AI", toolExecutionRequests: [{ id: "1", name: "track", arguments: "{}" }] },
  { type: "TOOL_EXECUTION_RESULT", id: "1", toolName: "track", contents: [{ type: "TEXT", text: "Hamburg" }] },
];
const post = () =>
  client.POST("/api/conversations/{memory_id}/messages/", {
    params: { ...params, header: { "Idempotency-Key": "one" } },
    body: { messages: said, metadata: { model: "none" } },
  });
const [first, second] = [await post(), await post()];
assert.deepEqual(first.data, { sequences: [1, 2, 3, 4] });
assert.deepEqual(second.data, first.data);

const history = await client.GET("/api/conversations/{memory_id}/messages/", { params: { ...params, query: { type: "USER" } } });
const [question] = history.data?.results ?? [];
assert(question && "type" in question && question.type === "USER");
const [content] = question.contents;
assert(content?.type === "TEXT" && content.text === "Where is my parcel?" && question.in_memory && question.is_complete);

const memory = await client.GET("/api/conversations/{memory_id}/memory/", { params: { ...params, query: { explain: true } } });
assert.equal(memory.data?.messages.length, 4);
assert.deepEqual(memory.data?.explanation?.map((each) => each.reason), Array(4).fill("in_window"));

const wrong = await client.GET("/api/conversations/{memory_id}/memory/", { params: { ...params, query: { max_tokens: 0 } } });
assert.equal(wrong.error?.errors?.[0]?.path, "?max_tokens");

const cleared = await client.DELETE("/api/conversations/{memory_id}/memory/", { params });
assert.equal(cleared.response.status, 204);
const empty = await client.GET("/api/conversations/{memory_id}/memory/", { params });
assert.deepEqual(empty.data?.messages, []);

const erased = await client.DELETE("/api/conversations/{memory_id}/", { params });
assert.equal(erased.response.status, 204);
console.log("The generated client began, added, read, cleared and erased a conversation.");
