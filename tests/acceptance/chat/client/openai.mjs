// Clients of OpenAI's API in JavaScript, unchanged, against a site: each through two turns, a stream and a tool.
// openai.mjs SITE TOKEN SERVER_TOKEN

import assert from 'node:assert/strict';
import { createOpenAI } from '@ai-sdk/openai';
import { Agent, OpenAIConversationsSession, OpenAIResponsesModel, Runner, tool as agentTool } from '@openai/agents';
import { generateText, isStepCount, streamText, tool } from 'ai';
import OpenAI from 'openai';
import { z } from 'zod';

const [site, apiKey, serverKey] = process.argv.slice(2);
const baseURL = `${site}/openai/v1`;
const model = 'assistant';
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const parameters = { type: 'object', properties: {}, additionalProperties: false, required: [] };
const declared = { name: 'get_time_zone', description: 'Return the time zone.', parameters };
const run = async (name, scene) => {
  await scene();
  console.log(`${name}: two turns, a stream and a tool`);
};

await run('openai, completions', async () => {
  const messages = [{ role: 'user', content: 'Hello' }];
  const ask = (options) => client.chat.completions.create({ model, messages, ...options });
  const say = async (options) => {
    const { message } = (await ask(options)).choices[0];
    messages.push(message);
    return message;
  };
  assert.match((await say()).content, /You wrote: Hello/);
  messages.push({ role: 'user', content: 'Again' });
  assert.match((await say()).content, /You wrote: Again/);
  messages.push({ role: 'user', content: 'Where are we?' });
  const tools = [{ type: 'function', function: declared }];
  const [call] = (await say({ tools })).tool_calls;
  messages.push({ role: 'tool', tool_call_id: call.id, content: 'Europe/Berlin' });
  assert.match((await say({ tools })).content, /Europe\/Berlin/);
  messages.push({ role: 'user', content: 'Streamed' });
  let text = '';
  for await (const chunk of await ask({ stream: true })) text += chunk.choices[0]?.delta.content ?? '';
  assert.match(text, /You wrote: Streamed/);
});

await run('openai, responses', async () => {
  const first = await client.responses.create({ model, input: 'Hello' });
  const second = await client.responses.create({ model, input: 'Again', previous_response_id: first.id });
  assert.match(second.output_text, /You wrote: Again/);
  const tools = [{ type: 'function', strict: false, ...declared }];
  const asked = await client.responses.create({ model, input: 'Where are we?', previous_response_id: second.id, tools });
  const { call_id } = asked.output.find(({ type }) => type === 'function_call');
  const input = [{ type: 'function_call_output', call_id, output: 'Europe/Berlin' }];
  const answer = await client.responses.create({ model, input, previous_response_id: asked.id, tools });
  assert.match(answer.output_text, /Europe\/Berlin/);
  const stream = client.responses.stream({ model, input: 'Streamed', previous_response_id: answer.id });
  assert.match((await stream.finalResponse()).output_text, /You wrote: Streamed/);
  const { data } = await client.conversations.items.list(first.conversation.id, { limit: 100 });
  assert.ok(data.some(({ content }) => content?.[0].text === 'Streamed'));
});

const provider = createOpenAI({ baseURL, apiKey });
for (const mode of ['chat', 'responses']) {
  await run(`@ai-sdk/openai, ${mode}`, async () => {
    const own = { model: provider[mode](model), stopWhen: isStepCount(3) };
    const messages = [];
    const tools = {
      get_time_zone: tool({ description: declared.description, inputSchema: z.object({}), execute: () => 'Europe/Berlin' }),
    };
    const say = async (content, options) => {
      messages.push({ role: 'user', content });
      const result = await generateText({ ...own, messages, ...options });
      messages.push(...result.response.messages);
      return result.text;
    };
    assert.match(await say('Hello'), /You wrote: Hello/);
    assert.match(await say('Again'), /You wrote: Again/);
    assert.match(await say('Where are we?', { tools }), /Europe\/Berlin/);
    const { textStream } = streamText({ ...own, messages: [...messages, { role: 'user', content: 'Streamed' }] });
    let text = '';
    for await (const piece of textStream) text += piece;
    assert.match(text, /You wrote: Streamed/);
  });
}

// A session adds the items of the model, too, as only a server of the site may. A conversation is the site's to store.
for (const [name, of] of [
  ['session', { client: new OpenAI({ baseURL, apiKey: serverKey }), modelSettings: { store: false } }],
  ['conversation', { client, modelSettings: {} }],
]) {
  await run(`@openai/agents, ${name}`, async () => {
    const session = new OpenAIConversationsSession({ client: of.client });
    const where = name === 'session' ? { session } : { conversationId: await session.getSessionId() };
    const agent = new Agent({
      name: 'Agent',
      model: new OpenAIResponsesModel(of.client, model),
      modelSettings: of.modelSettings,
      tools: [agentTool({ ...declared, parameters: z.object({}), execute: () => 'Europe/Berlin' })],
    });
    const runner = new Runner({ tracingDisabled: true });
    const say = async (text) => (await runner.run(agent, text, where)).finalOutput;
    assert.match(await say('Hello'), /You wrote: Hello/);
    assert.match(await say('Where are we?'), /Europe\/Berlin/);
    const streamed = await runner.run(agent, 'Streamed', { ...where, stream: true });
    let text = '';
    for await (const piece of streamed.toTextStream({ compatibleWithNodeStreams: true })) text += piece;
    await streamed.completed;
    assert.match(text, /You wrote: Streamed/);
    const items = await session.getItems();
    assert.deepEqual(
      items.slice(-9).map(({ type, role }) => role ?? type),
      ['user', 'assistant', 'user', 'assistant', 'function_call', 'function_call_result', 'assistant', 'user', 'assistant'],
    );
  });
}
