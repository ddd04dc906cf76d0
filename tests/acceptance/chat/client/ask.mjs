// Write the messages that the client's own Chat sends for its user to a file: ask.mjs QUESTIONS

import { writeFileSync } from 'node:fs';
import { Chat } from '@ai-sdk/react';
import { DefaultChatTransport } from 'ai';

const png = 'data:image/png;base64,iVBORw0KGgo=';
const file = { type: 'file', mediaType: 'image/png', filename: 'ä 😀.png', url: png };
const messages = [
  { text: 'Hello 😀\n\u2028' },
  { text: 'See', files: [file, { type: 'file', mediaType: 'application/pdf', url: 'https://example.org/a.pdf?b=c' }] },
  { text: '', files: [{ ...file, providerMetadata: { openai: { imageDetail: 'low' } } }] },
  { text: 'With metadata', metadata: { mood: 'good', nested: { list: [1, 2.5, null, true] } } },
  {
    parts: [
      { type: 'data-place', id: 'p', data: { lat: 52.5, lon: -13.25, names: ['Berlin'] } },
      { type: 'text', text: 'Here', providerMetadata: { x: { cache: true } } },
      { type: 'source-url', sourceId: 's', url: 'https://example.org', title: 'Example' },
      { type: 'file', mediaType: 'audio/wav', url: 'data:audio/wav;base64,UklGRg==' },
    ],
  },
];

const questions = [];
for (const message of messages) {
  let body;
  const transport = new DefaultChatTransport({
    fetch: async (url, init) => {
      body = JSON.parse(init.body);
      return new Response('data: {"type":"start"}\n\ndata: {"type":"finish"}\n\ndata: [DONE]\n\n');
    },
  });
  await new Chat({ transport, onError: (error) => { throw error; } }).sendMessage(message);
  questions.push(body.messages.at(-1));
}
writeFileSync(process.argv[2], JSON.stringify(questions));
