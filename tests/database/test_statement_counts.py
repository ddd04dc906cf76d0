"""The calls of a memory send as many statements as docs/databases.md lists."""

import re
from pathlib import Path

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from chatmemory_django.memory import MessageWindowChatMemory
from chatmemory_django.messages import AiMessage, SystemMessage, UserMessage
from chatmemory_django.models import Conversation, copies
from chatmemory_django.stores.django import DjangoChatMemoryStore
from chatmemory_django.stores.django.statements import Slot

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = (Path(__file__).parents[2] / "docs/databases.md").read_text()
LISTED = {
    call: (int(one), int(other)) for call, one, other in re.findall(r"^\| (.+) \| (\d) \| (\d) \|$", PAGE, re.MULTILINE)
}


def memory(memory_id: str = "c", most: int = 200, **options) -> MessageWindowChatMemory:
    return MessageWindowChatMemory(max_messages=most, id=memory_id, store=DjangoChatMemoryStore(), **options)


def turn(memory_id: str, *arguments: str) -> None:
    with memory(memory_id).turn(*arguments) as begun:
        begun.add(UserMessage("q"))
        begun.add(AiMessage("a"))


CALLS = {
    "`memory.messages()`": lambda: memory().messages(),
    "`memory.add(…)`": lambda: memory().add(UserMessage("x")),
    "`memory.messages()` with [pins](pins.md)": lambda: memory().messages(),
    "`memory.add(…)` with [pins](pins.md)": lambda: memory().add(UserMessage("x")),
    "`memory.messages()` after its limit has grown": lambda: memory(refill=True).messages(),
    "`memory.add(…)` after its limit has grown": lambda: memory(refill=True).add(UserMessage("x")),
    "the first `memory.add(…)` of a conversation": lambda: memory("new").add(UserMessage("x")),
    "`memory.add(…)` that evicts a hundred messages": lambda: memory(most=20).add(UserMessage("x")),
    "`memory.add(…)` that replaces the system message": lambda: memory().add(SystemMessage("t")),
    "`memory.add(…)` that evicts a message without `KEEP_HISTORY`": lambda: memory(most=121).add(UserMessage("x")),
    "`memory.turn()`": lambda: turn("c"),
    "the first `memory.turn()` of a conversation": lambda: turn("new"),
    '`memory.turn("early")`': lambda: turn("c", "early"),
    "`memory.clear()`": lambda: memory().clear(),
}


def test_every_call_of_the_page_is_counted():
    assert list(LISTED) == list(CALLS)


@pytest.mark.parametrize("call", CALLS)
def test_a_call_sends_as_many_statements_as_the_page_lists(call, settings, monkeypatch):
    monkeypatch.setattr(copies, "_holds", [])  # an app that the example site does not have
    memory().add(SystemMessage("s"), *(UserMessage(str(number)) for number in range(120)))
    if "KEEP_HISTORY" in call:
        settings.CHATMEMORY = {**settings.CHATMEMORY, "KEEP_HISTORY": False}
    if "has grown" in call:
        memory(most=20).add(UserMessage("y"))
    if "pins" in call:
        memory().pin(5)

    with CaptureQueriesContext(connection) as captured:
        CALLS[call]()

    sent = [query["sql"] for query in captured if query["sql"] not in {"BEGIN", "BEGIN IMMEDIATE", "COMMIT"}]
    assert len(sent) == LISTED[call][connection.vendor != "postgresql"]


def test_an_add_that_evicts_hundreds_of_messages_to_a_lower_mark_takes_a_few_statements(django_assert_max_num_queries):
    low = MessageWindowChatMemory(max_messages=400, evict_to=100, id="c", store=DjangoChatMemoryStore())
    low.add(*[UserMessage(f"{number}") for number in range(400)])

    with django_assert_max_num_queries(8):
        low.add(UserMessage("one more"))

    assert len(low.messages()) == 100


OWN, OTHER = 7_000_001, 7_000_002
"""Keys that no other value of a statement equals."""

READS = re.compile(r"\b(?:FROM|UPDATE|JOIN)\s+[\"`]chatmemory_(conversation|message)[\"`]")
NAMED = {
    # By its key, as a value or as that of the conversation in the same statement; or by the id of the memory.
    "message": re.compile(r"\bconversation_id[\"`]?(?: = | IN | AND |\))"),
    "conversation": re.compile(r"[\"`](?:id|memory_id)[\"`] (?:= |IN )"),
}
TRANSACTIONS = ("BEGIN", "COMMIT", "SAVEPOINT", "RELEASE", "SET ")


@pytest.mark.parametrize("call", CALLS)
def test_every_statement_of_a_call_names_its_conversation_and_no_other(call, settings):
    for key, memory_id in ((OWN, "c"), (OTHER, "other")):
        Conversation.objects.create(pk=key, memory_id=memory_id)
        memory(memory_id).add(SystemMessage("s"), *(UserMessage(str(number)) for number in range(120)))
    if "KEEP_HISTORY" in call:
        settings.CHATMEMORY = {**settings.CHATMEMORY, "KEEP_HISTORY": False}
    if "has grown" in call:
        memory(most=20).add(UserMessage("y"))
    sent: list[tuple[str, list[object]]] = []

    def note(execute, sql, params, many, context):
        if not any(isinstance(each, Slot) for each in params or ()):  # else it is only recorded, not executed
            sent.append((sql, list(params or ())))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        CALLS[call]()

    own = {"new", Conversation.objects.get(memory_id="new").pk} if "the first" in call else {"c", OWN}
    for sql, params in sent:
        if sql.startswith(TRANSACTIONS):
            continue
        assert own & {each for each in params if isinstance(each, int | str)}, sql
        assert not {"other", OTHER} & {each for each in params if isinstance(each, int | str)}, sql
        for table, named in NAMED.items():
            assert READS.findall(sql).count(table) <= len(named.findall(sql)), (table, sql)
