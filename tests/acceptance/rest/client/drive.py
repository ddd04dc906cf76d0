"""Drive the live server with the client that openapi-python-client generates from its schema, like ``drive.ts``."""

import io
import os

from chat_memory_client import AuthenticatedClient
from chat_memory_client.api.conversations import (
    conversations_create,
    conversations_destroy,
    conversations_export_retrieve,
    conversations_fork_create,
    import_create,
)
from chat_memory_client.api.memory import (
    conversations_memory_destroy,
    conversations_memory_retrieve,
    conversations_memory_rewind_create,
    conversations_memory_switch_create,
)
from chat_memory_client.api.messages import (
    conversations_messages_alternatives_list,
    conversations_messages_create,
    conversations_messages_list,
)
from chat_memory_client.models import (
    AiMessage,
    Conversation,
    Fork,
    From,
    Head,
    Imports,
    Memory,
    NewConversation,
    NewMessage,
    NewMessages,
    PaginatedMessageList,
    Problem,
    StoredMessages,
    TextContent,
    ToolExecutionRequest,
    UserMessage,
)
from chat_memory_client.types import File

client = AuthenticatedClient(base_url=os.environ["BASE_URL"], token=os.environ["TOKEN"], prefix="Token")

created = conversations_create.sync(client=client, body=NewConversation(title="Where is my parcel?"))
assert isinstance(created, Conversation)
memory_id = created.memory_id

call = ToolExecutionRequest(id="1", name="track", arguments="{}")
body = NewMessages(
    [
        NewMessage(UserMessage("USER", [TextContent("TEXT", "Where is my parcel?")]), client_message_id="msg-1"),
        NewMessage(AiMessage("AI", tool_execution_requests=[call])),
    ]
)
stored = conversations_messages_create.sync(memory_id, client=client, body=body, idempotency_key="one")
assert isinstance(stored, StoredMessages), stored
again = conversations_messages_create.sync(memory_id, client=client, body=body, idempotency_key="one")
assert again == stored
assert [each.sequence for each in stored.messages] == [1, 2]

page = conversations_messages_list.sync(memory_id, client=client, search="PARCEL")
assert isinstance(page, PaginatedMessageList)
(found,) = page.results
assert isinstance(found.message, UserMessage)
(content,) = found.message.contents
assert isinstance(content, TextContent)
assert content.text == "Where is my parcel?"

memory = conversations_memory_retrieve.sync(memory_id, client=client, explain=True)
assert isinstance(memory, Memory)
assert [type(each.message) for each in memory.messages] == [UserMessage, AiMessage]
head = conversations_memory_rewind_create.sync(memory_id, client=client, body=From(1))
assert head == Head(1)
answer = NewMessages([NewMessage(AiMessage("AI", text="It left Hamburg."))])
regenerated = conversations_messages_create.sync(memory_id, client=client, body=answer)
assert isinstance(regenerated, StoredMessages), regenerated
(message,) = regenerated.messages
assert (message.place.number, message.place.of, message.place.previous) == (2, 2, 2)
others = conversations_messages_alternatives_list.sync(memory_id, message.sequence, client=client)
assert isinstance(others, PaginatedMessageList)
assert [each.sequence for each in others.results] == [2]
edit = NewMessages([NewMessage(UserMessage("USER", [TextContent("TEXT", "And my letter?")]))], after=0)
edited = conversations_messages_create.sync(memory_id, client=client, body=edit)
assert isinstance(edited, StoredMessages), edited
assert conversations_memory_switch_create.sync(memory_id, client=client, body=From(2)) == Head(2)
everything = conversations_messages_list.sync(memory_id, client=client, all_branches=True)
assert [(each.sequence, each.on_path) for each in everything.results] == [(4, False), (3, False), (2, True), (1, True)]
forked = conversations_fork_create.sync(memory_id, client=client, body=Fork(through=3))
assert isinstance(forked, Conversation), forked

wrong = conversations_memory_retrieve.sync(memory_id, client=client, max_tokens=0)
assert isinstance(wrong, Problem)
assert wrong.errors[0].path == "?max_tokens"

assert conversations_memory_destroy.sync_detailed(memory_id, client=client).status_code == 204
empty = conversations_memory_retrieve.sync(memory_id, client=client)
assert isinstance(empty, Memory)
assert empty.messages == []

exported = conversations_export_retrieve.sync(memory_id, client=client)
assert isinstance(exported, File)
lines = File(io.BytesIO(exported.payload.read()))
imported = import_create.sync(client=client, body=lines, rename=True)
assert isinstance(imported, Imports), imported
(copy,) = imported.conversations
assert copy.original_memory_id == memory_id

for each in (memory_id, forked.memory_id, copy.memory_id):
    assert conversations_destroy.sync_detailed(each, client=client).status_code == 204
print("The Python client created, posted to, read, branched, cleared, exported, imported and erased a conversation.")
