// Drive the live server with the client that is generated from its schema: create, post, read, branch, clear, export, import, erase.
import assert from "node:assert/strict";
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

const { BASE_URL, TOKEN } = process.env;
const client = createClient<paths>({ baseUrl: BASE_URL, headers: { Authorization: `Token ${TOKEN}` } });

const created = await client.POST("/api/conversations/", { body: { title: "Where is my parcel?" } });
assert(created.data);
const params = { path: { memory_id: created.data.memory_id } };

const messages: components["schemas"]["NewMessage"][] = [
  { message: { type: "SYSTEM", text: "You help with orders." } },
  { message: { type: "USER", contents: [{ type: "TEXT", text: "Where is my parcel?" }] }, client_message_id: "msg-1" },
  { message: { type: "AI", toolExecutionRequests: [{ id: "1", name: "track", arguments: "{}" }] }, metadata: { model: "none" } },
  { message: { role: "tool", tool_call_id: "1", content: "Hamburg" } },
];
const post = () =>
  client.POST("/api/conversations/{memory_id}/messages/", {
    params: { ...params, header: { "Idempotency-Key": "one" } },
    body: { messages },
  });
const [first, second] = [await post(), await post()];
assert.deepEqual(first.data?.messages.map((each) => each.sequence), [1, 2, 3, 4]);
assert.equal(first.data.messages[0]?.message, null); // system messages are hidden from the owner
assert.deepEqual(second.data, first.data);

const history = await client.GET("/api/conversations/{memory_id}/messages/", { params: { ...params, query: { search: "PARCEL" } } });
const [question] = history.data?.results ?? [];
assert(question?.message && "type" in question.message && question.message.type === "USER");
const [content] = question.message.contents;
assert(content?.type === "TEXT" && content.text === "Where is my parcel?" && question.in_memory && question.is_complete);
assert.deepEqual(question.snippet?.filter((each) => each.is_hit), [{ text: "parcel", is_hit: true }]);

const rated = await client.PATCH("/api/conversations/{memory_id}/messages/{sequence}/", {
  params: { path: { ...params.path, sequence: 3 } },
  body: { metadata: { feedback: "good" } },
});
assert.deepEqual(rated.data?.metadata, { model: "none", feedback: "good" });

const memory = await client.GET("/api/conversations/{memory_id}/memory/", { params: { ...params, query: { explain: true } } });
assert.equal(memory.data?.messages.length, 4);
assert.deepEqual(memory.data?.explanation?.map((each) => each.is_sent), Array(4).fill(true));

const branches = { params, body: { to: 2 } };
const rewound = await client.POST("/api/conversations/{memory_id}/memory/rewind/", branches);
assert.deepEqual(rewound.data, { to: 2 });
const regenerated = await client.POST("/api/conversations/{memory_id}/messages/", {
  params,
  body: { messages: [{ message: { type: "AI", text: "It left Hamburg." } }] },
});
assert.deepEqual(regenerated.data?.messages[0]?.place, { number: 2, of: 2, previous: 3, next: null });
const edited = await client.POST("/api/conversations/{memory_id}/messages/", {
  params,
  body: { messages: [{ message: { role: "user", content: "And my letter?" } }], after: 1 },
});
assert.equal(edited.data?.messages[0]?.sequence, 6);
const others = await client.GET("/api/conversations/{memory_id}/messages/{sequence}/alternatives/", {
  params: { path: { ...params.path, sequence: 6 } },
});
assert.deepEqual(others.data?.results.map((each) => each.sequence), [2]);
const back = await client.POST("/api/conversations/{memory_id}/memory/switch/", {
  params,
  body: { to: regenerated.data?.messages[0]?.place?.previous ?? 0 },
});
assert.deepEqual(back.data, { to: 4 });
const everything = await client.GET("/api/conversations/{memory_id}/messages/", { params: { ...params, query: { all_branches: true } } });
assert.deepEqual(everything.data?.results.map((each) => each.on_path), [false, false, true, true, true, true]);

const fork = await client.POST("/api/conversations/{memory_id}/fork/", { params, body: { through: 5 } });
assert(fork.data);
const unfit = await client.POST("/api/conversations/{memory_id}/memory/switch/", { params, body: { to: 7 } });
assert.equal(unfit.error?.errors[0]?.path, "$.to");
const refused = await client.POST("/api/conversations/{memory_id}/memory/pop/", { params });
assert.equal(refused.response.status, 403);

const wrong = await client.GET("/api/conversations/{memory_id}/memory/", { params: { ...params, query: { max_tokens: 0 } } });
assert.equal(wrong.error?.errors[0]?.path, "?max_tokens");
assert.equal(wrong.error?.type, "urn:chatmemory:invalid");

const list = await client.GET("/api/conversations/", { params: { query: { is_archived: false } } });
assert.deepEqual(list.data?.results.map((each) => each.preview), ["It left Hamburg.", "Hamburg"]);

const cleared = await client.DELETE("/api/conversations/{memory_id}/memory/", { params });
assert.equal(cleared.response.status, 204);
const empty = await client.GET("/api/conversations/{memory_id}/memory/", { params });
assert.deepEqual(empty.data?.messages, []);

const exported = await client.GET("/api/conversations/{memory_id}/export/", { params, parseAs: "text" });
const imported = await client.POST("/api/import/", {
  params: { query: { rename: true } },
  body: exported.data as string,
  bodySerializer: (body) => body,
  headers: { "Content-Type": "application/jsonl" },
});
assert.equal(imported.data?.conversations[0]?.original_memory_id, created.data.memory_id);

for (const memory_id of [created.data.memory_id, fork.data.memory_id, imported.data.conversations[0].memory_id]) {
  const erased = await client.DELETE("/api/conversations/{memory_id}/", { params: { path: { memory_id } } });
  assert.equal(erased.response.status, 204);
}
console.log("The TypeScript client created, posted to, read, branched, cleared, exported, imported and erased a conversation.");
