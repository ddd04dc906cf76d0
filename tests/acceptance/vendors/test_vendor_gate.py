"""
Whatever happened in a conversation, no vendor refuses it.

This is the short form; ``python -m tests.acceptance.vendors --requests 10000`` is the long one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

import pytest

from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.model import ChatModelError, InvalidRequestError
from chatmemory_django.memory import MessageWindowChatMemory
from chatmemory_django.messages import AiMessage, ChatMessage, TextContent, UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.operations.forking import fork
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.acceptance.vendors import foreign
from tests.acceptance.vendors.clients import MODELS
from tests.acceptance.vendors.histories import MEMORIES, OWN_IDS, Site, look
from tests.acceptance.vendors.rules import SYSTEM, VENDORS, merged
from tests.acceptance.vendors.server import Vendors, vendors
from tests.acceptance.vendors.turns import READERS, Asked, Turn
from tests.acceptance.vendors.wire import Answer

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,
]

REQUESTS = 300


@pytest.fixture
def server() -> Iterator[Vendors]:
    with vendors() as server:
        yield server


def test_any_history_is_accepted_by_any_vendor(server: Vendors, tmp_path: Path):
    site = Site(server, tmp_path)

    site.run(REQUESTS, 1, shrinks=True)

    assert {*server.counts} == {*VENDORS}


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_chat_is_carried_through_all_vendors_and_back(server: Vendors, memory):
    """With a call in each answer, the thinking before it, and a file of each kind that the vendor takes."""
    asked = [(vendor, client(vendor, server)) for vendor, client in MODELS if VENDORS[vendor].template is None]
    assert {vendor for vendor, _ in asked} == {vendor for vendor, each in VENDORS.items() if each.template is None}
    server.script = looks_once

    for number, (vendor, model) in enumerate([*asked, *reversed(asked)]):
        question = [TextContent(f"Question {number}"), *(foreign.FILES[kind] for kind in sorted(VENDORS[vendor].files))]
        assistant = Assistant(model, memory=memory, system_message=f"{SYSTEM} Today is day {number}.", tools=[look])
        assert assistant.chat("carried", UserMessage(question)) == "Nothing is there."

    assert server.refused == []


def looks_once(vendor: str, asked: Asked) -> Answer:
    if asked.turns[-1].results:
        return Answer("Nothing is there.", thinking="So I looked.")
    return Answer("I look.", ((OWN_IDS[vendor](Random(4)), "look", '{"where": "there"}'),), "Where is it?")


@pytest.mark.parametrize("model", MODELS, ids=lambda model: f"{model[0]}-{model[1].__name__}")
def test_a_question_with_a_file_that_a_model_does_not_take_is_refused_before_it_is_asked(server: Vendors, model):
    vendor, client = model
    assistant = Assistant(client(vendor, server))

    for kind in sorted({*foreign.FILES} - VENDORS[vendor].files):
        with pytest.raises(InvalidRequestError, match=kind):
            assistant.chat("refused", UserMessage([TextContent("Look!"), foreign.FILES[kind]]))

    assert server.counts == {}
    assert assistant.chat("refused", "And now?") == "Well."


def test_another_process_sends_the_same():
    """Both are new ones: Hypothesis also draws constants of the modules that a process has imported up to now."""
    command = [sys.executable, "-m", "tests.acceptance.vendors", "--requests", "30", "--seed", "2"]
    runs = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONHASHSEED": seed})
        for seed in ("1", "2")
    ]

    one, another = (re.findall("SHA-256 of what was sent: ([0-9a-f]{64})", run.communicate()[0]) for run in runs)

    assert [run.returncode for run in runs] == [0, 0]
    assert len(one) == 1
    assert one == another


@pytest.mark.parametrize("model", MODELS, ids=lambda model: f"{model[0]}-{model[1].__name__}")
def test_what_is_sent_for_a_message_stays_when_others_leave_the_window(server: Vendors, model):
    vendor, client = model
    chat_model, random = client(vendor, server), Random(3)
    for number in range(5):
        store = DjangoChatMemoryStore()
        messages: list[ChatMessage] = [UserMessage("Hello.")]
        for _ in range(40):
            more = foreign.messages(random)
            if not ids_of(messages) & ids_of(more):  # of equal ids, the second one changes while the first is there
                messages += more
        MessageWindowChatMemory(id=f"{vendor}-{number}", max_messages=1_000, store=store).add(*messages)

        turns: list[list[Turn]] = []
        for size in (1_000, 12):
            fork(Conversation.objects.get(memory_id=f"{vendor}-{number}"), f"{vendor}-{number}-{size}")
            assistant = Assistant(chat_model, memory=partial(MessageWindowChatMemory, max_messages=size))
            server.last = {}
            with suppress(ChatModelError):  # what the vendor refuses, the first test shows
                assistant.chat(f"{vendor}-{number}-{size}", "And now?")
            assert server.last, "The client could not make the request."
            turns.append(merged(READERS[VENDORS[vendor].api](server.last).turns))

        whole, window = turns
        assert len(window) < len(whole)
        stays = window[3:]  # before, messages are merged with others, or are results without their call
        assert stays == whole[len(whole) - len(stays) :]


def ids_of(messages: Sequence[ChatMessage]) -> set[str]:
    answers = (each for each in messages if isinstance(each, AiMessage))
    return {call.id for each in answers for call in each.tool_execution_requests if call.id}
