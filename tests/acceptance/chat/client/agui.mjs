// AG-UI's own client, with its checks of what a run may send, against a site.
// agui.mjs SITE TOKEN

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { HttpAgent, runHttpRequest, transformHttpEventStream } from '@ag-ui/client';

const [site, token] = process.argv.slice(2);
const headers = { Authorization: `Bearer ${token}` };
const url = `${site}/api/ag-ui`;

// As on docs/ag-ui.md
class ChatAgent extends HttpAgent {
  connect(input) {
    return transformHttpEventStream(runHttpRequest(() => fetch(`${this.url}/connect`, this.requestInit(input))));
  }
}

const agentFor = (threadId = randomUUID()) => new ChatAgent({ url, headers, threadId });
const say = async (agent, content, subscriber) => {
  agent.addMessage({ id: randomUUID(), role: 'user', content });
  return agent.runAgent({}, subscriber);
};
const texts = (agent) => agent.messages.map(({ content }) => (typeof content === 'string' ? content.trim() : content));
const isStored = async (agent) => {
  const other = agentFor(agent.threadId);
  await other.connectAgent();
  const shape = ({ messages }) =>
    messages.map(({ id, role, content, toolCalls }) => [id, role, content ?? '', toolCalls?.map(({ id }) => id)]);
  assert.deepEqual(shape(other), shape(agent));
};

{
  const agent = agentFor();
  await agent.connectAgent();
  assert.deepEqual(texts(agent), ['Hello! How can I help?']);
  await say(agent, 'First');
  assert.match(texts(agent)[2], /You wrote: First$/);
  await say(agent, 'Weather in Rome?');
  assert.deepEqual(
    agent.messages.slice(3).map(({ role }) => role),
    ['user', 'assistant', 'tool', 'assistant'],
  );
  assert.match(texts(agent).at(-1), /The tool returned: /);
  await isStored(agent);

  agent.setMessages(agent.messages.slice(0, 3));
  await say(agent, 'Second');
  assert.match(texts(agent)[4], /Second$/);
  await isStored(agent);
  await say(agent, 'Think');
  assert.equal(agent.messages.find(({ role }) => role === 'reasoning').content, 'Hm, so.');
  await isStored(agent);
}
{
  const agent = agentFor();
  await say(agent, 'Where are we?');
  const { toolCalls } = agent.messages.at(-1);
  assert.equal(toolCalls[0].function.name, 'get_time_zone');
  agent.addMessage({ id: randomUUID(), role: 'tool', toolCallId: toolCalls[0].id, content: 'Europe/Oslo' });
  await agent.runAgent();
  assert.match(texts(agent).at(-1), /The tool returned: Europe\/Oslo$/);
}
{
  const agent = agentFor();
  await say(agent, 'First');
  await say(agent, 'Call it Oslo.');
  const [interrupt] = agent.pendingInterrupts;
  assert.equal(interrupt.reason, 'tool_call');
  await agent.runAgent({ resume: [{ interruptId: interrupt.id, status: 'resolved', payload: { approved: true } }] });
  assert.deepEqual(agent.pendingInterrupts, []);
  assert.match(texts(agent).at(-1), /The tool returned: /);
}
{
  const agent = agentFor();
  const parameters = { type: 'object', properties: { of: { type: 'string' } } };
  const tools = [{ name: 'get_color', description: 'Return the color of a thing.', parameters }];
  agent.addMessage({ id: randomUUID(), role: 'user', content: 'Which color?' });
  await agent.runAgent({ tools });
  const [call] = agent.messages.at(-1).toolCalls;
  assert.deepEqual([call.function.name, call.function.arguments], ['get_color', '{"of": "sea"}']);
  agent.addMessage({ id: randomUUID(), role: 'tool', toolCallId: call.id, content: 'blue' });
  await agent.runAgent({ tools });
  assert.match(texts(agent).at(-1), /The tool returned: blue$/);
}
{
  await assert.rejects(() => say(agentFor('x'.repeat(300)), 'First'), /400/);
}
console.log("AG-UI's client read all that it was sent.");
