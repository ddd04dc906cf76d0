// Drive the live server with OpenAI's client for JavaScript, and with the sessions of the Agents SDK for JavaScript.
import assert from "node:assert/strict";
import { OpenAIConversationsSession } from "@openai/agents";
import OpenAI from "openai";

const { BASE_URL, TOKEN } = process.env;
const client = new OpenAI({ baseURL: `${BASE_URL}/openai/v1`, apiKey: TOKEN, maxRetries: 0 });
const { conversations } = client;

const made = await conversations.create({ items: [{ role: "user", content: "Hi" }], metadata: { topic: "greetings" } });
assert.deepEqual(await conversations.retrieve(made.id), made);
assert.deepEqual((await conversations.update(made.id, { metadata: { a: "b" } })).metadata, { a: "b" });

const items: OpenAI.Responses.ResponseInputItem[] = Array.from({ length: 20 }, (_, number) => ({ role: "user", content: `${number}` }));
for (const _ of Array(3)) await conversations.items.create(made.id, { items });
await conversations.items.create(made.id, { items: [{ type: "reasoning", id: "rs_1", summary: [], encrypted_content: "x==" }] });

const listed: string[] = [];
for await (const item of conversations.items.list(made.id, { limit: 7, order: "asc", include: ["reasoning.encrypted_content"] })) {
  assert.deepEqual(await conversations.items.retrieve(item.id ?? "", { conversation_id: made.id }), item);
  listed.push(item.id ?? "");
}
assert.equal(new Set(listed).size, 62);
assert.equal(listed.at(-1), "rs_1");
assert.equal((await conversations.items.delete("rs_1", { conversation_id: made.id })).id, made.id);

await assert.rejects(
  conversations.items.create(made.id, { items: [...items.slice(1), { role: "critic", content: "" } as never] }),
  (error) => error instanceof OpenAI.BadRequestError && error.param === "items[19].role" && !!error.requestID,
);
await assert.rejects(conversations.retrieve("conv_none"), OpenAI.NotFoundError);
const stranger = new OpenAI({ baseURL: `${BASE_URL}/openai/v1`, apiKey: "wrong", maxRetries: 0 });
await assert.rejects(stranger.conversations.retrieve(made.id), OpenAI.AuthenticationError);
assert.equal((await conversations.delete(made.id)).deleted, true);

const session = new OpenAIConversationsSession({ client });
await session.addItems([
  { role: "user", content: "Where is my parcel?" },
  { type: "function_call", callId: "c1", name: "track", arguments: "{}", status: "completed" },
  { type: "function_call_result", callId: "c1", name: "track", status: "completed", output: { type: "text", text: "Hamburg" } },
  { role: "assistant", status: "completed", content: [{ type: "output_text", text: "In Hamburg." }] },
]);
assert.deepEqual((await session.getItems()).map((item) => item.type ?? "message"), ["message", "function_call", "function_call_result", "message"]);
assert.equal((await session.getItems(2)).length, 2);
const popped = await session.popItem();
assert(popped && "role" in popped && popped.role === "assistant");
assert.equal((await session.getItems()).length, 3);
await session.clearSession();
assert.deepEqual(await session.getItems(), []);
console.log("OpenAI's client for JavaScript and the session of its Agents SDK did all of it.");
