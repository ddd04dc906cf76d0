// What a page shows is what goes on: the client's own Chat, and assistant-ui on top of useChat, against a site.
// assistant-ui runs a tool in the page, too.
// tree.mjs SITE TOKEN

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { JSDOM } from 'jsdom';

const dom = new JSDOM('', { url: 'http://localhost/' });
for (const name of ['window', 'document', 'HTMLElement', 'Node']) globalThis[name] ??= dom.window[name];

const { createElement, useEffect } = await import('react');
const { createRoot } = await import('react-dom/client');
const { Chat, useChat } = await import('@ai-sdk/react');
const { DefaultChatTransport, lastAssistantMessageIsCompleteWithToolCalls } = await import('ai');
const { AssistantRuntimeProvider, AuiConfig, Tools } = await import('@assistant-ui/react');
const { AssistantChatTransport, useAISDKRuntime, useChatRuntime } = await import('@assistant-ui/react-ai-sdk');
const { z } = await import('zod');

const [site, token] = process.argv.slice(2);
const { version } = JSON.parse(readFileSync('node_modules/@assistant-ui/react/package.json', 'utf8'));
const headers = { Authorization: `Bearer ${token}` };
const api = `${site}/api/chat`;

const texts = (messages) =>
  messages.map(({ parts }) => parts.map((part) => (part.type === 'text' ? part.text : '')).join('').trim());
const stored = async (id) => (await fetch(`${api}/${id}/messages`, { headers })).json();
const until = async (condition, what) => {
  for (let tries = 0; !condition(); tries++) {
    assert.ok(tries < 6000, `waited in vain until ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
};
const shownIs = async (id, messages, expected) => {
  assert.deepEqual(texts(messages), expected);
  assert.deepEqual(texts(await stored(id)), expected);
};
const greeting = 'Hello! How can I help?';
const id = (name) => `${name}-${Date.now()}`;

// The client's own Chat

const chatOf = async (name) => {
  const chatId = id(name);
  const chat = new Chat({
    id: chatId,
    messages: await stored(chatId),
    transport: new DefaultChatTransport({ api, headers }),
  });
  return chat;
};

{
  const chat = await chatOf('greeting');
  assert.deepEqual(texts(chat.messages), [greeting]);
  await chat.sendMessage({ text: 'First' });
  assert.equal(chat.error, undefined);
  const answer = texts(chat.messages)[2];
  assert.match(answer, /^\d+\. You wrote: First$/);
  await shownIs(chat.id, chat.messages, [greeting, 'First', answer]);
  const [before, after] = [chat.messages[0], (await stored(chat.id))[0]];
  assert.deepEqual([before.id, before.parts], [after.id, after.parts]);

  await chat.sendMessage({ text: 'Second' });
  const second = texts(chat.messages)[4];
  chat.messages = chat.messages.slice(0, 3); // as setMessages does
  await chat.sendMessage({ text: 'Third' });
  const third = texts(chat.messages)[4];
  assert.match(third, /Third$/);
  assert.notEqual(second, third);
  await shownIs(chat.id, chat.messages, [greeting, 'First', answer, 'Third', third]);

  chat.messages = chat.messages.slice(0, 1);
  await chat.sendMessage({ text: 'Other' });
  assert.match(texts(chat.messages)[2], /Other$/);
  await shownIs(chat.id, chat.messages, [greeting, 'Other', texts(chat.messages)[2]]);
}
{
  const chat = await chatOf('errors');
  await chat.sendMessage({ text: 'First' });
  await chat.sendMessage({ text: 'x'.repeat(200_000) });
  assert.match(chat.error.message, /characters/);
  await chat.sendMessage({ text: 'Second' }); // the refused one is still in the list
  assert.equal(chat.error, undefined);
  const answers = texts(chat.messages).filter((each) => each.includes('You wrote'));
  assert.deepEqual(texts(await stored(chat.id)), [greeting, 'First', answers[0], 'Second', answers[1]]);

  const other = new Chat({ id: id('unknown'), messages: chat.messages, transport: new DefaultChatTransport({ api, headers }) });
  await other.sendMessage({ text: 'Whose?' });
  assert.equal(other.error.message, 'The conversation has changed. Load it again.');
}

// assistant-ui

const sendAutomaticallyWhen = lastAssistantMessageIsCompleteWithToolCalls;
const page = async (name, chatId = id(name), config = undefined) => {
  const held = { id: chatId };
  const messages = await stored(chatId);
  const transport = new AssistantChatTransport({
    api,
    headers,
    prepareSendMessagesRequest: ({ body, messages, trigger, messageId }) => ({ body: { ...body, id: chatId, messages, trigger, messageId } }),
  });
  const Page = () => {
    const chat = useChat({ id: chatId, messages, transport, sendAutomaticallyWhen });
    const runtime = useAISDKRuntime(chat);
    useEffect(() => {
      Object.assign(held, { chat, thread: runtime.thread });
    });
    return createElement(AssistantRuntimeProvider, { runtime, config });
  };
  createRoot(dom.window.document.createElement('div')).render(createElement(Page));
  await until(() => held.thread, 'the page is there');
  held.idle = () => until(() => held.chat.status === 'ready' || held.chat.status === 'error', 'the answer has ended');
  held.say = async (text) => {
    const count = held.chat.messages.length;
    held.thread.append({ role: 'user', content: [{ type: 'text', text }] });
    await until(() => held.chat.messages.length > count + 1 || held.chat.error, 'the answer begins');
    await held.idle();
    assert.equal(held.chat.error, undefined);
  };
  held.edit = async (place, text) => {
    const { composer } = held.thread.getMessageByIndex(place);
    composer.beginEdit();
    composer.setText(text);
    composer.send();
    const isAnswered = (shown) => shown[place] === text && shown.length === place + 2;
    await until(() => isAnswered(texts(held.chat.messages)) || held.chat.error, 'the answer to the edit begins');
    await held.idle();
    assert.equal(held.chat.error, undefined);
  };
  return held;
};

{
  const shown = await page('assistant-ui');
  await shown.say('First');
  await shown.say('Second');
  const first = texts(shown.chat.messages).slice(0, 3);
  await shown.edit(3, 'Third');
  await shownIs(shown.id, shown.chat.messages, [...first, 'Third', texts(shown.chat.messages)[4]]);
  await shown.edit(1, 'Fourth');
  await shownIs(shown.id, shown.chat.messages, [first[0], 'Fourth', texts(shown.chat.messages)[2]]);

  shown.thread.append({ role: 'user', content: [{ type: 'text', text: 'Endlessly, please.' }] });
  await until(() => texts(shown.chat.messages).at(-1).endsWith('One'), 'the answer begins');
  shown.thread.cancelRun(); // closes the connection, and nothing else
  await shown.idle();
  await shown.say('And now?');
  const listed = texts(await stored(shown.id));
  assert.match(listed.at(-1), /You wrote: And now\?$/);
  assert.match(listed.at(-3), /One$/);
  assert.deepEqual(listed, texts(shown.chat.messages));
}

// assistant-ui runs a tool of the browser, with the code of docs/browser-tools.md

{
  const posted = [];
  const reach = globalThis.fetch;
  globalThis.fetch = (path, options) => {
    posted.push(JSON.parse(options.body));
    return reach(new URL(path, site), options); // as in a page of the site
  };
  const ran = [];
  const locate = async (precise) => {
    ran.push(precise);
    if (ran.length > 1) throw new Error('The user refuses.');
    return { lat: 60.4, lon: 5.3 };
  };

  const toolkit = {
    get_location: {
      type: 'frontend',
      parameters: z.object({ precise: z.boolean().optional() }),
      execute: ({ precise }) => locate(precise),
      render: () => null, // or what the chat shows of the call
    },
  };
  const config = AuiConfig({ tools: Tools({ toolkit }) });

  let thread;
  const Page = () => {
    const runtime = useChatRuntime({
      transport: new AssistantChatTransport({ api: '/api/chat', headers }),
      sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithToolCalls,
    });
    thread = runtime.thread;
    return createElement(AssistantRuntimeProvider, { runtime, config });
  };
  createRoot(dom.window.document.createElement('div')).render(createElement(Page));
  await until(() => thread?.getModelContext().tools, 'the tool is there');
  const shown = () => thread.getState().messages;
  const ask = async () => {
    const answers = shown().length + 2;
    thread.append({ role: 'user', content: [{ type: 'text', text: 'Where am I?' }] });
    const last = () => shown().at(-1);
    const isWhole = () => last().status.type === 'complete' && last().content.at(-1)?.type === 'text';
    await until(() => shown().length === answers && isWhole(), 'the answer has ended');
    return last().content.at(-1).text;
  };
  assert.match(await ask(), /The tool returned: \{"lat":60.4,"lon":5.3\}$/);
  assert.match(await ask(), /The tool returned: .*The user refuses\.$/);
  globalThis.fetch = reach;

  assert.deepEqual(ran, [true, true]);
  assert.deepEqual(posted.map(({ messages }) => messages.at(-1).role), ['user', 'assistant', 'user', 'assistant']);
  const messages = await stored(posted[0].id);
  assert.deepEqual(messages.map(({ id }) => id), shown().map(({ id }) => id));
  const calls = messages.map(({ parts }) => parts.filter(({ toolCallId }) => toolCallId));
  assert.deepEqual(calls.map(({ length }) => length), [0, 1, 0, 1]);
  assert.deepEqual(calls[1][0].output, { lat: 60.4, lon: 5.3 });
  assert.match(calls[3][0].errorText, /The user refuses\.$/);

  // It does not run a call that waits when the page is opened.
  const left = await page('waits');
  await left.say('Where am I?');
  const opened = await page('waits', left.id, config);
  const { toolCallId } = opened.chat.messages.at(-1).parts.at(-1);
  const answer = opened.thread.getMessageByIndex(opened.chat.messages.length - 1);
  answer.getMessagePartByToolCallId(toolCallId).addToolResult('In Oslo');
  await until(() => texts(opened.chat.messages).at(-1).endsWith('The tool returned: In Oslo'), 'the answer goes on');
  await opened.idle();
  await shownIs(left.id, opened.chat.messages, texts(opened.chat.messages));
  assert.equal(ran.length, 2);
}

console.log(`The client's Chat and assistant-ui ${version} go on from what they show, and with what a tool of the browser returns.`);
process.exit(0);
