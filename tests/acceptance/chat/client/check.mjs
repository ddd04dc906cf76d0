// Read recorded answers with the client's own code: check.mjs RECORDINGS
// The page then holds what it would load from the history, which is valid by the client's own schemas.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { Chat } from '@ai-sdk/react';
import * as ai from 'ai';
import { DefaultChatTransport, convertToModelMessages, readUIMessageStream, validateUIMessages } from 'ai';

const { headers, questions, recordings } = JSON.parse(readFileSync(process.argv[2], 'utf8'));
const { version } = createRequire(import.meta.url)('ai/package.json');
const major = Number(version.split('.')[0]);

const warnings = [];
console.warn = (...args) => warnings.push(args.join(' '));

// Cut at arbitrary bytes, as a network does.
const response = (body) => {
  const bytes = new TextEncoder().encode(body);
  let at = 0;
  const stream = new ReadableStream({
    pull(controller) {
      if (at >= bytes.length) return controller.close();
      controller.enqueue(bytes.slice(at, (at += 997)));
    },
  });
  return new Response(stream, { headers });
};

const chatWith = (body, messages) => {
  const transport = new DefaultChatTransport({ fetch: async () => response(body) });
  return new Chat({ id: 'chat', transport, messages: structuredClone(messages), generateId: () => 'question-1' });
};

// Without what only one side has: step starts, states of texts, time and latency.
const comparable = (messages) =>
  JSON.parse(JSON.stringify(messages)).map(({ metadata, parts, ...message }) => {
    const { createdAt, latencyMs, ...others } = metadata ?? {};
    const kept = parts.filter((part) => part.type !== 'step-start').map(({ state, rawInput, ...part }) => {
      if (part.type === 'text' || part.type === 'reasoning') return part;
      // Versions 5 and 6 keep input that is not JSON as rawInput, which 7 deprecates.
      return { ...part, state, input: part.input ?? rawInput ?? null };
    });
    return { ...message, metadata: others, parts: kept };
  });

// What an answer that waits is sent after a click, and how the page's messages look once it has gone on.
const decided = async (body, before, decision) => {
  const sent = [];
  const transport = new DefaultChatTransport({
    fetch: async (url, init) => {
      sent.push(JSON.parse(init.body));
      return response(body);
    },
  });
  const sendAutomaticallyWhen = ai.lastAssistantMessageIsCompleteWithApprovalResponses;
  const chat = new Chat({ id: 'chat', transport, messages: structuredClone(before), sendAutomaticallyWhen });
  await chat.addToolApprovalResponse(decision);
  while (!sent.length || chat.status !== 'ready') {
    assert.equal(chat.error, undefined);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  assert.equal(sent.length, 1, 'the page sends the decision once');
  const [part] = sent[0].messages.at(-1).parts.filter((part) => part.approval);
  assert.equal(sent[0].messages.at(-1).role, 'assistant');
  assert.equal(part.state, 'approval-responded');
  assert.deepEqual(part.approval, decision);
  return chat;
};

// A page with tools of its own: asked, or loaded while the answer waits. It sends all outputs at once, and no more.
const putOut = async (bodies, before, outputs) => {
  const sent = [];
  const transport = new DefaultChatTransport({
    fetch: async (url, init) => {
      sent.push(JSON.parse(init.body));
      return response(bodies.shift());
    },
  });
  const chat = new Chat({
    id: 'chat',
    transport,
    messages: structuredClone(before),
    generateId: () => 'question-1',
    sendAutomaticallyWhen: ai.lastAssistantMessageIsCompleteWithToolCalls,
    onToolCall: ({ toolCall: { toolName: tool, toolCallId } }) => {
      if (outputs[toolCallId]) chat.addToolOutput({ tool, toolCallId, ...outputs[toolCallId] });
    },
  });
  if (before.length) {
    for (const { type, toolCallId, state } of before.at(-1).parts) {
      const tool = type.replace('tool-', '');
      if (state === 'input-available') chat.addToolOutput({ tool, toolCallId, ...outputs[toolCallId] });
    }
  } else await chat.sendMessage({ text: 'Hello' });
  while (bodies.length || chat.status !== 'ready') {
    assert.equal(chat.error, undefined);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  const posted = sent.at(-1).messages.at(-1);
  assert.equal(posted.role, 'assistant');
  for (const [id, { output, errorText, state = 'output-available' }] of Object.entries(outputs)) {
    const part = posted.parts.find((part) => part.toolCallId === id);
    assert.deepEqual([part.state, part.output, part.errorText], [state, output, errorText]);
  }
  return chat;
};

for (const { name, body, history, error, before, decision, since, waiting, outputs, then } of recordings) {
  if (since > major) continue;
  try {
    if (outputs) {
      const alone = chatWith(body, []);
      await alone.sendMessage({ text: 'Hello' });
      assert.deepEqual(comparable(alone.messages), comparable(waiting));
      for (const chat of [await putOut([body, then], [], outputs), await putOut([then], waiting, outputs)]) {
        assert.deepEqual(comparable(chat.messages), comparable(history));
      }
      for (const messages of [waiting, history]) {
        const valid = await validateUIMessages({ messages: structuredClone(messages) });
        assert.ok((await convertToModelMessages(valid)).length >= 1);
      }
      continue;
    }
    if (decision) {
      const chat = await decided(body, before, decision);
      assert.deepEqual(comparable(chat.messages), comparable(history));
      const valid = await validateUIMessages({ messages: structuredClone(history) });
      assert.ok((await convertToModelMessages(valid)).length >= 1);
      continue;
    }
    const chat = chatWith(body, []);
    await chat.sendMessage({ text: 'Hello' });
    assert.equal(chat.error?.message, error);
    assert.equal(chat.status, error ? 'error' : 'ready');
    assert.ok(!JSON.stringify(chat.messages).includes('streaming'), 'a part is open');
    if (!history) continue;
    assert.deepEqual(comparable(chat.messages), comparable(history));

    // A page reloaded during the answer gets the whole stream again: after the question, or after the answer.
    for (const known of [history.slice(0, 1), ...(major === 7 ? [history] : [])]) {
      const resumed = chatWith(body, known);
      await resumed.resumeStream();
      assert.equal(resumed.error, undefined);
      assert.deepEqual(comparable(resumed.messages), comparable(history));
    }

    const transport = new DefaultChatTransport({ fetch: async () => response(body) });
    const stream = await transport.sendMessages({ chatId: 'chat', messages: [], trigger: 'submit-message' });
    let last;
    for await (const message of readUIMessageStream({ stream, terminateOnError: true })) last = message;
    assert.deepEqual(comparable([last]), comparable(history.slice(1)));

    const valid = await validateUIMessages({ messages: structuredClone(history) });
    assert.deepEqual(comparable(valid), comparable(history));
    assert.ok((await convertToModelMessages(valid)).length >= 1);
  } catch (failure) {
    console.error(`ai ${version}: ${name}\n${body}`);
    throw failure;
  }
}

const valid = await validateUIMessages({ messages: structuredClone(questions) });
assert.deepEqual(valid, questions);
assert.equal((await convertToModelMessages(valid)).length, questions.length);

// Nothing to resume is not an error.
const idle = new Chat({ transport: new DefaultChatTransport({ fetch: async () => new Response(null, { status: 204 }) }) });
await idle.resumeStream();
assert.equal(idle.status, 'ready');

assert.deepEqual(warnings, []);
console.log(`ai ${version} reads all ${recordings.length} recorded answers.`);
