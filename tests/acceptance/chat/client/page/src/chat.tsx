import { useChat } from '@ai-sdk/react';
import * as ai from 'ai';
import { DefaultChatTransport, getToolName, isToolUIPart, type FileUIPart, type UIMessage } from 'ai';
import { useEffect, useRef, useState } from 'react';
import { headers } from './headers';

type Usage = { inputTokens?: number; outputTokens?: number; totalTokens?: number };
type Metadata = { createdAt?: string; model?: string; finishReason?: string; usage?: Usage; partial?: boolean };
type Message = UIMessage<Metadata>;
type Props = { id: string; initialMessages: UIMessage[]; sendsLast: boolean };

// Version 5 has no approvals.
const { lastAssistantMessageIsCompleteWithApprovalResponses: areAllDecided } = ai as any;

// What runs in this page, by the names that the server has declared. The model reads what it returns or throws.
const tools: { [name: string]: (input: any) => Promise<unknown> } = {
  get_time_zone: async () => Intl.DateTimeFormat().resolvedOptions().timeZone,
};
const waiting = (messages: UIMessage[]) =>
  (messages.at(-1)?.parts ?? []).filter(isToolUIPart).filter((part) => part.state === 'input-available');

export function Chat({ id, initialMessages, sendsLast }: Props) {
  const left = useRef(waiting(initialMessages));
  const chat = useChat<Message>({
    id,
    sendAutomaticallyWhen: (all) => ai.lastAssistantMessageIsCompleteWithToolCalls(all) || !!areAllDecided?.(all),
    onToolCall: ({ toolCall }) => void run(toolCall.toolName, toolCall.toolCallId, toolCall.input),
    messages: initialMessages as Message[],
    resume: !left.current.length, // an answer that waits is not in progress
    transport: new DefaultChatTransport({
      api: '/api/chat',
      headers,
      prepareSendMessagesRequest: sendsLast
        ? ({ id, messages, trigger, messageId }) => ({
            body: { id, message: messages[messages.length - 1], trigger, messageId },
          })
        : undefined,
    }),
  });
  const { messages, sendMessage, regenerate, stop, status, error } = chat;
  const decide: Decide = (id, approved, reason) => (chat as any).addToolApprovalResponse({ id, approved, reason });
  const run = (tool: string, toolCallId: string, input: unknown) =>
    tools[tool]?.(input).then( // others run on the server
      (output) => chat.addToolOutput({ tool, toolCallId, output: output as never }),
      (error) => chat.addToolOutput({ tool, toolCallId, state: 'output-error', errorText: String(error) }),
    );
  useEffect(() => left.current.splice(0).forEach((part) => run(getToolName(part), part.toolCallId, part.input)), []);
  const [input, setInput] = useState('');
  const [editing, setEditing] = useState<string>();
  const files = useRef<HTMLInputElement>(null);
  const isBusy = status === 'submitted' || status === 'streaming';

  const stopAnswer = async () => {
    await fetch(`/api/chat/${encodeURIComponent(id)}/stop`, {
      method: 'POST',
      headers: { ...headers, 'content-type': 'application/json' },
      body: '{}',
    });
    await stop();
  };

  return (
    <>
      {messages.map((message) => (
        <article key={message.id} data-role={message.role} data-id={message.id}>
          {message.parts.map((part, index) => (
            <Part key={index} part={part} decide={decide} />
          ))}
          <footer>
            {message.metadata?.partial && 'Stopped. '}
            {message.metadata?.model} {message.metadata?.usage?.totalTokens} {message.metadata?.finishReason}
          </footer>
          {message.role === 'user' ? (
            <button onClick={() => (setEditing(message.id), setInput(textOf(message)))}>Edit</button>
          ) : (
            <button onClick={() => regenerate({ messageId: message.id })} disabled={isBusy}>
              Regenerate
            </button>
          )}
        </article>
      ))}
      {error && (
        <p role="alert">
          {error.message} <button onClick={() => regenerate()}>Retry</button>
        </p>
      )}
      <output>{status}</output>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          sendMessage({ text: input, files: files.current?.files ?? undefined, messageId: editing });
          setInput('');
          setEditing(undefined);
          if (files.current) files.current.value = '';
        }}
      >
        <input aria-label="Message" value={input} onChange={(event) => setInput(event.target.value)} />
        <input aria-label="Files" type="file" multiple ref={files} />
        <button disabled={isBusy}>Send</button>
        <button type="button" onClick={stopAnswer} disabled={!isBusy}>
          Stop
        </button>
      </form>
    </>
  );
}

type Decide = (id: string, approved: boolean, reason?: string) => void;

function Part({ part, decide }: { part: Message['parts'][number]; decide: Decide }) {
  if (part.type === 'text') return <p className="text">{part.text}</p>;
  if (part.type === 'reasoning') return <p className="reasoning">{part.text}</p>;
  if (part.type === 'file') return <File part={part} />;
  if (isToolUIPart(part)) {
    return (
      <dl data-state={part.state}>
        <dt>
          {getToolName(part)}({JSON.stringify(part.input)})
        </dt>
        <dd>{part.state === 'output-error' ? part.errorText : String(part.output ?? '…')}</dd>
        {(part.state as string) === 'approval-requested' && (
          <dd>
            <button onClick={() => decide((part as any).approval.id, true)}>Approve</button>
            <button onClick={() => decide((part as any).approval.id, false, 'Not now.')}>Deny</button>
          </dd>
        )}
      </dl>
    );
  }
  return null;
}

function File({ part }: { part: FileUIPart }) {
  const [content, setContent] = useState<string>();
  const isStored = /^https?:[^?]*\/api\/chat\/.*\/files\//.test(part.url);
  useEffect(() => {
    if (!isStored) return;
    // For an address, the browser would send no token.
    fetch(new URL(part.url).pathname, { headers })
      .then((response) => response.blob())
      .then((blob) => setContent(URL.createObjectURL(blob)));
  }, [isStored, part.url]);
  if (part.mediaType.startsWith('image/')) return <img src={isStored ? content : part.url} alt={part.filename} />;
  return (
    <a href={isStored ? content : part.url} download={part.filename}>
      {part.filename ?? part.mediaType}
    </a>
  );
}

const textOf = (message: Message) => message.parts.map((part) => (part.type === 'text' ? part.text : '')).join('');
