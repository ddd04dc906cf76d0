// A page written from the documentation of the AI SDK, which knows nothing of the server but its address.
// /?chat=ID names the chat; with &last, each request sends only the last message.

import type { UIMessage } from 'ai';
import { StrictMode } from 'react';
import { createRoot } from 'react-dom/client';
import { Chat } from './chat';
import { headers } from './headers';

const address = new URLSearchParams(location.search);
const id = address.get('chat') ?? 'no-name';
const stored = await fetch(`/api/chat/${encodeURIComponent(id)}/messages`, { headers });
const messages: UIMessage[] = await stored.json();

createRoot(document.getElementById('root')!).render(
  <StrictMode>
    <Chat id={id} initialMessages={messages} sendsLast={address.has('last')} />
  </StrictMode>,
);
