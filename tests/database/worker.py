"""
A process that writes to the database in ``DATABASE_URL``, for tests with several processes.

    python -m tests.database.worker add COUNT      add that many messages to the conversation "c", one by one
    python -m tests.database.worker pause COUNT N MORE    do that, then add a system message and MORE others at once,
                                                   and hang after N of its statements
    python -m tests.database.worker import COUNT N print each of that many conversations that is imported, and hang
                                                   after N statements, unless N is 0
    python -m tests.database.worker take COUNT     take the conversation as often, each time for two messages of its own
    python -m tests.database.worker state COUNT    print the conversation as JSON, add that many more, print it again
    python -m tests.database.worker migrate
"""

import json
import os
import sys
import time
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from uuid import uuid4

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
django.setup()

from django.core.management import call_command  # noqa: E402  # after the setup
from django.db import connection  # noqa: E402

from chatmemory_django.chat.runs import leases  # noqa: E402
from chatmemory_django.memory import MessageWindowChatMemory  # noqa: E402
from chatmemory_django.messages import NewMessage, SystemMessage, UserMessage  # noqa: E402
from chatmemory_django.models import Conversation  # noqa: E402
from chatmemory_django.operations import (  # noqa: E402
    ImportedConversation,
    ImportedMessage,
    ImportResult,
    import_conversations,
)
from chatmemory_django.stores.base import LeaseLostError  # noqa: E402
from chatmemory_django.stores.django import DjangoChatMemoryStore  # noqa: E402

memory = MessageWindowChatMemory(max_messages=5, id="c", store=DjangoChatMemoryStore())


def add(count: int) -> None:
    for number in range(count):
        memory.add(UserMessage(f"{os.getpid()} {number}"))


def pause(count: int, after: int, more: int) -> None:
    add(count)
    with hanging(after):
        memory.add(SystemMessage("Be brief."), *[UserMessage("hi")] * more)


def import_talks(count: int, after: int) -> None:
    def note(talk: ImportedConversation, result: ImportResult) -> None:
        sys.stdout.write(f"{talk.memory_id} {result.name}\n")
        sys.stdout.flush()

    begun = datetime(2024, 5, 6, tzinfo=UTC)
    talks = (
        ImportedConversation(f"c{number}", [ImportedMessage(UserMessage(f"{each}"), begun) for each in range(9)])
        for number in range(count)
    )
    with hanging(after):
        import_conversations(talks, each=note)


def hanging(after: int) -> AbstractContextManager[None]:
    """Hang after so many statements in the block."""
    done = 0

    def wrapper(execute, sql, params, many, context):
        nonlocal done
        result = execute(sql, params, many, context)
        done += 1
        if done == after:
            sys.stdout.write("paused\n")
            sys.stdout.flush()
            time.sleep(600)
        return result

    return connection.execute_wrapper(wrapper)


def take(count: int) -> None:
    for number in range(count):
        while not isinstance(taken := leases.take("default", "c", None, uuid4()), leases.Taken):
            time.sleep(0.01)
        try:
            for step in ("begins", "ends"):
                message = NewMessage(UserMessage(f"{os.getpid()} {number} {step}"))
                memory.store.append_messages("c", [message], memory.window(), fence=taken.fence)
                sys.stdout.write(f"{step}\n")
                sys.stdout.flush()
                time.sleep(0.02)
        except LeaseLostError:
            sys.stdout.write("lost\n")
        leases.end(taken, leases.State.DONE)


def state(count: int) -> None:
    print_state()
    add(count)
    print_state()


def print_state() -> None:
    conversation = Conversation.objects.get(memory_id="c")
    sys.stdout.write(
        json.dumps(
            {
                "texts": list(conversation.history().values_list("text", flat=True)),
                "sequences": list(conversation.messages.values_list("sequence", flat=True)),
                "next_sequence": conversation.next_sequence,
                "memory": [getattr(message, "text", None) or message.single_text for message in memory.messages()],
                "memory_messages": conversation.memory_messages,
            }
        )
        + "\n"
    )


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["add", count]:
            add(int(count))
        case ["pause", count, after, more]:
            pause(int(count), int(after), int(more))
        case ["import", count, after]:
            import_talks(int(count), int(after))
        case ["take", count]:
            take(int(count))
        case ["migrate"]:
            call_command("migrate", verbosity=0)
        case ["state", count]:
            state(int(count))
