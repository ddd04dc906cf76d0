"""The async methods, called as an ASGI view calls them."""

import asyncio

import pytest

from chatmemory_django.memory import MessageWindowChatMemory
from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.asgi import run


def memory(memory_id: str = "c") -> MessageWindowChatMemory:
    return MessageWindowChatMemory(max_messages=3, id=memory_id, store=DjangoChatMemoryStore())


@pytest.mark.django_db(transaction=True)
def test_async_methods_behave_like_their_sync_versions():
    async def talk() -> list[list]:
        seen = []
        await memory().aadd(*(UserMessage(str(number)) for number in range(5)))
        seen.append(await memory().amessages())
        await memory().aset([UserMessage("a summary"), UserMessage("4")])
        seen.append(await memory().amessages())
        await memory().aclear()
        seen.append(await memory().amessages())
        return seen

    seen = run(talk())

    assert seen == [
        [UserMessage("2"), UserMessage("3"), UserMessage("4")],
        [UserMessage("a summary"), UserMessage("4")],
        [],
    ]


@pytest.mark.django_db(transaction=True)
def test_concurrent_awaited_adds_lose_nothing():
    async def talk() -> None:
        await asyncio.gather(*(memory().aadd(UserMessage(str(number))) for number in range(20)))

    run(talk())

    history = Conversation.objects.get(memory_id="c").history()
    assert sorted(history.values_list("text", flat=True), key=int) == [str(number) for number in range(20)]
    assert list(history.values_list("sequence", flat=True)) == list(range(1, 21))


@pytest.mark.django_db(transaction=True)
def test_a_cancelled_add_is_stored_completely_or_not_at_all():
    async def talk() -> None:
        adding = asyncio.create_task(memory().aadd(*(UserMessage(str(number)) for number in range(50))))
        await asyncio.sleep(0)
        adding.cancel()
        await asyncio.gather(adding, return_exceptions=True)
        await memory().aadd(UserMessage("next"))

    run(talk())

    texts = list(Conversation.objects.get(memory_id="c").history().values_list("text", flat=True))
    assert texts in (["next"], [*map(str, range(50)), "next"])
