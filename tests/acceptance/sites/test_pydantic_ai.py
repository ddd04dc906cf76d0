"""pydantic-ai on every site: an agent's conversations belong to their owner, with forks and branches."""

import pytest
from pydantic_ai.conversation import Conversation as Carried
from pydantic_ai.conversation_store import ConversationConflict
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart

from chatmemory_django.contrib.adapters.pydantic_ai import DjangoConversationStore
from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.provider import get_chat_memory
from tests.asgi import run

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)

TEA, PLEASE = ModelRequest.user_text_prompt("Tea?"), ModelResponse(parts=[TextPart("Please")])


def test_they_belong_to_their_owner_and_the_last_saved_comes_first(ann, bob):
    store, scope, other = DjangoConversationStore(), str(ann.pk), str(bob.pk)

    async def talk() -> None:
        carried = Carried(conversation_id="c", messages=[TEA, PLEASE])
        await store.save(carried, scope=scope)
        await store.fork("c", at=1, new_conversation_id="d", source_scope=scope)
        await store.branch("c", at=1, expected_revision=carried.revision, scope=scope)
        assert await store.load("c", scope=other) is None
        with pytest.raises(ConversationConflict):
            await store.save(carried, scope=other)
        first, second = await store.list_conversations(scope=scope)
        assert (first.conversation_id, second.conversation_id) == ("c", "d")
        assert first.updated_at > second.updated_at
        assert [entry.message for entry in await store.read_history(first.branches[0])] == [TEA, PLEASE]

    run(talk())

    assert {conversation.owner for conversation in Conversation.objects.all()} == {ann}
    get_chat_memory("c", owner=ann).add(UserMessage("Milk?"))
    milk = run(store.load("c", scope=scope)).messages[-1]
    assert milk.parts[0].content == "Milk?"
    assert run(store.load("c", scope=scope)).messages[-1] == milk
    run(store.delete("c", scope=scope))
    run(store.delete("d", scope=scope))
    assert not Conversation.objects.exists()
