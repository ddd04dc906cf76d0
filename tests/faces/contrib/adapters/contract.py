"""
What the stores of all adapters promise.

The tests of an adapter have a subclass, which describes how its framework reads and writes the conversation "c".
"""

import asyncio
from collections.abc import Awaitable
from typing import Any, ClassVar

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied
from django.db import connection, transaction

from chatmemory_django.messages import (
    AiMessage,
    CustomMessage,
    SystemMessage,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation
from chatmemory_django.provider import get_chat_memory
from tests.faces.contrib.adapters.running import in_threads, run


def owner(name: str) -> Any:
    return get_user_model().objects.create_user(name)


def stored(memory_id: str = "c") -> list:
    return [row.chat_message for row in Conversation.objects.get(memory_id=memory_id).history()]


class StoreContract:
    """Promises of all adapters."""

    EVERY: ClassVar[list]
    """The framework's messages of every kind."""

    SHOWN: ClassVar[list]
    """What it reads of the site's own messages, see below."""

    BASE: ClassVar[type]
    """The framework's class of such a store."""

    REFUSAL: ClassVar[type[Exception]] = PermissionDenied
    """What is raised for another user."""

    WRITES: ClassVar[dict[str, int]] = {"add": 3, "clear": 0}
    """The kinds of writes, and the number of messages that each leaves of two."""

    def store(self, memory_id: Any = "c", user: Any = None) -> Any:
        """Return the store of *memory_id*, or of all conversations, for *user*."""
        raise NotImplementedError

    def add(self, *messages: Any, to: Any = "c", user: Any = None) -> Awaitable[object]:
        raise NotImplementedError

    def read(self, user: Any = None) -> Awaitable[list]:
        raise NotImplementedError

    def clear(self, user: Any = None) -> Awaitable[object]:
        raise NotImplementedError

    def question(self, text: str) -> Any:
        """Return the framework's message of a user."""
        raise NotImplementedError

    def write(self, kind: str) -> Awaitable[object]:
        """Return the write of that *kind*; see ``WRITES``."""
        return self.add(self.question("3")) if kind == "add" else self.clear()

    def exactly(self, messages: list) -> object:
        """Return *messages* so that 1, 1.0 and True differ."""
        return repr(messages)

    def shape(self, messages: list) -> list:
        """Return of *messages* what can be known before they are read."""
        return messages

    def count(self) -> Awaitable[int]:
        async def count() -> int:
            return len(await self.read())

        return count()

    def test_messages_come_back_unchanged_with_any_size_of_the_memory(self):
        run(self.add(*self.EVERY[:2]))
        run(self.add(*self.EVERY[2:]))

        assert run(self.read()) == self.EVERY
        assert self.exactly(run(self.read())) == self.exactly(self.EVERY)
        assert len(get_chat_memory("c").messages()) == 3

    def test_messages_of_the_site_are_included_and_stable(self):
        memory = get_chat_memory("c")
        call = ToolExecutionRequest("1", "look", '{"at": 1}')
        memory.add(SystemMessage("Be brief."), UserMessage("Hi"), AiMessage("Wait.", tool_execution_requests=[call]))
        memory.add(CustomMessage({"of": "others"}), ToolExecutionResultMessage("1", "look", "found"))

        first = run(self.read())

        assert self.shape(first) == self.SHOWN
        assert run(self.read()) == first
        run(self.add(self.question("And now?")))
        assert run(self.read()) == [*first, self.question("And now?")]

    def test_a_rewind_removes_messages(self):
        questions = [self.question(text) for text in ("1", "2", "3")]
        run(self.add(*questions))

        get_chat_memory("c").rewind(1)

        assert run(self.read()) == questions[:1]

    def test_a_new_conversation_belongs_to_the_owner(self):
        anna = owner("anna")

        run(self.add(self.question("Hi"), user=anna))

        assert Conversation.objects.get().owner == anna

    def test_another_users_conversation_is_refused(self):
        anna, ben = owner("anna"), owner("ben")
        run(self.add(self.question("Hi"), user=anna))

        assert run(self.read(user=ben)) == []
        for write in (self.add(self.question("Hello"), user=ben), self.clear(user=ben)):
            with pytest.raises(self.REFUSAL):
                run(write)
        assert run(self.read(user=anna)) == [self.question("Hi")]
        assert stored() == [UserMessage("Hi")]

    def test_making_one_reads_nothing_even_in_an_event_loop(self, django_assert_num_queries):
        async def make() -> object:
            return self.store()

        with django_assert_num_queries(0):
            assert isinstance(run(make()), self.BASE)

    def test_a_cancelled_task_ends_after_its_write(self):
        async def give_up(write: Awaitable[object]) -> bool:
            writing = asyncio.ensure_future(write)
            await asyncio.sleep(0)
            writing.cancel()
            await asyncio.sleep(0)
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            return writing.cancelled()

        for kind, left in self.WRITES.items():
            Conversation.objects.all().delete()
            run(self.add(self.question("1"), self.question("2")))
            assert run(give_up(self.write(kind))), kind
            assert run(self.count()) == left, kind

    def test_threads_keep_no_connection(self):
        in_threads(10, lambda number: run(self.add(self.question("Hi"), to=f"c{number}")))

        assert in_threads(10, lambda _: connection.connection) == [None] * 10

    def test_a_rolled_back_transaction_stores_nothing(self):
        with transaction.atomic():
            async_to_sync(self.add)(self.question("Hi"))
            assert Conversation.objects.exists()
            transaction.set_rollback(True)

        assert run(self.read()) == []


class HistoryContract(StoreContract):
    """Promises of adapters to which messages are added one after the other, without a revision of the whole."""

    def text(self, message: Any) -> str:
        return message.content

    def begin(self, memory_id: Any) -> object:
        """Do the first thing that names the conversation."""
        return self.store(memory_id)

    def test_adding_no_messages_creates_nothing(self):
        run(self.add())

        assert not Conversation.objects.exists()
        assert run(self.read()) == []

    def test_clearing_starts_again_and_keeps_the_old_messages_as_a_branch(self):
        run(self.add(*map(self.question, "12")))

        run(self.clear())

        assert run(self.read()) == []
        assert get_chat_memory("c").messages() == []
        run(self.add(self.question("3")))
        assert run(self.read()) == [self.question("3")]
        assert Conversation.objects.get().history(all_branches=True).count() == 3

    def test_clearing_an_unknown_conversation_does_not_create_it(self):
        run(self.clear())

        assert not Conversation.objects.exists()

    @pytest.mark.parametrize("memory_id", ["", "x" * 256, None])
    def test_an_invalid_id_is_refused(self, memory_id):
        with pytest.raises((TypeError, ValueError), match="memory id"):
            self.begin(memory_id)

    def test_50_concurrent_writers_lose_and_split_nothing(self):
        def write(number: int) -> None:
            run(self.add(*(self.question(f"{number}.{place}") for place in range(3))))

        in_threads(50, write)

        found = [self.text(message) for message in run(self.read())]
        assert len(found) == 150
        for place in range(0, 150, 3):
            number = found[place].partition(".")[0]
            assert found[place : place + 3] == [f"{number}.0", f"{number}.1", f"{number}.2"]

    def test_nor_do_50_tasks_in_one_event_loop(self):
        pair = [self.question("Hi"), self.question("Hello")]

        async def talk() -> None:
            await asyncio.gather(*(self.add(*pair) for _ in range(50)))

        run(talk())

        assert run(self.read()) == pair * 50
