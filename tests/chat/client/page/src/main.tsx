// A page of somebody who has read the documentation of the AI SDK, and knows of the server only where it is.
// The chat is named in the address: /?chat=ID, and with &last only the last message is sent.

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
