"""What the chat reads of a history: no more of a long one than of a short one."""

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import RequestFactory

from chatmemory_django.chat.answers.questions import Question, question_again
from chatmemory_django.chat.http import views
from chatmemory_django.chat.work import ChatWork
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Conversation, Message
from tests.quick import mostly_slow

SHORT, LONG, OTHERS = 200, 5_000, 500


@pytest.fixture
def ann() -> User:
    return User.objects.create_user("ann")


@pytest.fixture(autouse=True)
def few_messages(settings) -> None:
    settings.CHATMEMORY = {"CHAT": {"MAX_MESSAGES": 20}}


@pytest.fixture
def histories(db, ann) -> list[Conversation]:
    """Create a short and a long history, each with a regenerated answer, among many new conversations."""
    made = [_history(ann, length) for length in (SHORT, LONG)]
    others = Conversation.objects.bulk_create(
        Conversation(memory_id=f"o{number}", owner=ann) for number in range(OTHERS)
    )
    Message.objects.bulk_create(
        Message(conversation=other, sequence=1, type=MessageType.USER, text="What?")
        for other in Conversation.objects.filter(memory_id__in=[each.memory_id for each in others])
    )
    if connection.vendor == "postgresql":  # autovacuum would do this, but later
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")
    return made


def _history(owner: User, length: int) -> Conversation:
    conversation = Conversation.objects.create(memory_id=f"c{length}", owner=owner, next_sequence=length + 1)
    rows = [
        Message(
            conversation=conversation,
            sequence=sequence,
            type=MessageType.USER if sequence % 2 else MessageType.AI,
            text="What?",
            client_message_id=f"m{sequence}",
        )
        for sequence in range(1, length + 1)
    ]
    rows[-1].parent_sequence, rows[-2].on_path = length - 3, False
    Message.objects.bulk_create(rows)
    return conversation


def read_by(look: Callable[[], object]) -> int:
    """Return the database's work for *look*: the rows that it reads or, where it counts none, the steps it takes."""
    connection.ensure_connection()
    match connection.vendor:
        case "sqlite":
            return _steps(look)
        case "postgresql":
            return _explained(look)
        case _:
            return _handled(look)


def _steps(look: Callable[[], object]) -> int:
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    connection.connection.set_progress_handler(count, 10)
    look()
    connection.connection.set_progress_handler(None, 10)
    return steps


def _explained(look: Callable[[], object]) -> int:
    plans = []

    def explain(execute, sql, params, many, context):
        with connection.connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", params)
            [[plan]] = cursor.fetchall()
            plans.append(plan if isinstance(plan, list) else json.loads(plan))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(explain):
        look()
    return sum(_rows_of(plan[0]["Plan"]) for plan in plans)


def _rows_of(node: dict) -> int:
    own = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
    return round(own) + sum(map(_rows_of, node.get("Plans", ())))


def _handled(look: Callable[[], object]) -> int:
    before = _handler_reads()
    look()
    return _handler_reads() - before


def _handler_reads() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
        return sum(int(value) for _, value in cursor.fetchall())


def answer_of(conversation: Conversation, sequence: int) -> object:
    order: Any = SimpleNamespace(memory_id=conversation.memory_id, owner=None)
    return ChatWork(lambda: order, "", f"m{sequence}")._stored_message(order)


LOOKS: dict[str, Callable[[User, Conversation, int], object]] = {
    "the newest messages": lambda ann, it, length: views._messages(
        RequestFactory().get("/"), it.memory_id, "/", ann, it.memory_id, is_answering=False
    ),
    "an answer": lambda ann, it, length: answer_of(it, length),
    "the newest question": lambda ann, it, length: question_again(it, None, Question(None)),
    "the question of an answer": lambda ann, it, length: question_again(it, f"m{length}", Question(None)),
    "the alternatives of an answer": lambda ann, it, length: list(it.alternatives(length)),
    "the alternatives of a message": lambda ann, it, length: list(it.alternatives(length - 3)),
}


@pytest.mark.parametrize("name", mostly_slow(LOOKS))
def test_lookups_do_not_read_the_whole_history(monkeypatch, histories, ann, name):
    monkeypatch.setattr(views, "entered", lambda request, chat_id: (ann, chat_id))
    short, long = (
        read_by(lambda it=it, length=length: LOOKS[name](ann, it, length))
        for it, length in zip(histories, (SHORT, LONG), strict=True)
    )

    assert long < 2 * short + 100
