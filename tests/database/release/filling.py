"""Every verb there is, for a site whose tables are kept: what no verb leaves, a killed process does."""

import datetime
import json
from contextlib import suppress
from typing import Any
from uuid import uuid4

from django.conf import settings
from django.contrib.auth.models import User
from django.test.utils import setup_test_environment
from django.utils import timezone

from chatmemory_django.chat.approvals import ApprovalRequiredError, Decision, Output, Resume
from chatmemory_django.chat.approvals.desk import assign
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.costs.calls import record_call
from chatmemory_django.chat.costs.summing import sum_calls
from chatmemory_django.chat.model import TokenUsage
from chatmemory_django.chat.models import AnswerChunk, ModelCall, Run
from chatmemory_django.chat.people import answer_as
from chatmemory_django.chat.tools import Tool
from chatmemory_django.contrib.files.models import MediaDeletion
from chatmemory_django.contrib.holds.models import LegalHold
from chatmemory_django.contrib.notes import keeping
from chatmemory_django.memory import ClearToolResults, MessageWindowChatMemory, TokenWindowChatMemory
from chatmemory_django.messages import (
    AiMessage,
    NewMessage,
    SystemMessage,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation, ErasedConversation
from chatmemory_django.models.conversations import new_expiry
from chatmemory_django.operations import erase, fork, hand_over, rate, recount
from chatmemory_django.provider import get_chat_memory, known_window
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.acceptance.sites.test_nothing_is_left import Site
from tests.estimators import ADDITIVE_WORDS
from tests.faces.chat.scripted import ScriptedModel, calling
from tests.pictures import picture

MOMENT = datetime.datetime(2026, 11, 1, 12, tzinfo=datetime.UTC)


def summarize(previous: str | None, messages: list[Any]) -> str:
    """Summarize, or fail where the text wants it."""
    if "fails" in str(messages[0]):
        raise RuntimeError("No summary.")
    return previous or "A summary."


def cost(model: str, usage: TokenUsage) -> str:
    return "0.0125"


def fill() -> None:
    setup_test_environment()
    ann = User.objects.create_user("ann", is_staff=True, is_superuser=True)
    ben = User.objects.create_user("ben", is_staff=True)
    Site(ann, settings).fill()
    remember(ann)
    call_tools(ann)
    hand_on(ann, ben)
    keep_notes(ann)
    count_calls(ann)
    leave(ann)


def remember(ann: User) -> None:
    """Have what branches, pins, windows without a history, summaries that fail and titles leave."""
    memory = get_chat_memory("verbs", ann, max_tokens=1000)
    memory.add(
        SystemMessage("Be brief."),
        NewMessage(UserMessage("Hi"), {"from": "a page", "number": 1.5}, "u1"),
        NewMessage(AiMessage("Hello"), client_message_id="a1"),
        UserMessage("one"),
        AiMessage("two"),
        picture(1),
    )
    for persist in ("late", "early"):
        with memory.turn(persist, after=3) as turn:
            turn.add(UserMessage(persist))
            turn.add(AiMessage("Yes"))
    memory.switch(5)
    memory.pin(3)
    memory.add(UserMessage("three"), AiMessage("four"))
    memory.evict(1)
    memory.remove(4)
    memory.rewind(5)
    memory.pop()
    talk = Conversation.objects.get(memory_id="verbs")
    rate(talk, 3, 5, "Kind.")
    talk.title, talk.metadata, talk.is_pinned, talk.is_archived = "Verbs", {"tags": ["a", "ß"]}, True, True
    talk.save()
    fork(talk, "forked", through=3)
    Conversation.objects.create(memory_id="temporary", owner=ann, assistant="support", expires_at=new_expiry())
    small = TokenWindowChatMemory(
        max_tokens=15, token_count_estimator=ADDITIVE_WORDS, id="small", store=DjangoChatMemoryStore(owner=ann)
    )
    small.add(SystemMessage("old"), *(UserMessage(f"{number}") for number in range(9)))
    small.add(SystemMessage("new"), UserMessage("after"))
    small.clear()
    small.add(UserMessage("again"))
    recount(Conversation.objects.filter(memory_id="small"), known_window)
    cleared = get_chat_memory("cleared", ann, max_tokens=60, clear_tool_results=ClearToolResults(keep=1))
    for number in range(4):
        call = ToolExecutionRequest(str(number), "find", "{}")
        result = ToolExecutionResultMessage.from_request(call, "in the depot " * 5)
        cleared.add(UserMessage("Where?"), AiMessage(tool_execution_requests=[call]), result, AiMessage("There."))
    forgetful = MessageWindowChatMemory(
        max_messages=2, id="forgetful", store=DjangoChatMemoryStore(owner=ann, keep_history=False)
    )
    forgetful.add(*(UserMessage(f"{number}") for number in range(4)))
    forgetful.set(UserMessage("set"), AiMessage("done"))
    for memory_id, text in (("summed_up", "It was long"), ("unsummarized", "It fails")):
        for number in range(12):
            get_chat_memory(memory_id, ann).add(UserMessage(f"{text} {number}"))
    MessageWindowChatMemory(max_messages=9, id="nobody's", store=DjangoChatMemoryStore()).add(
        UserMessage("Hi"), picture(2)
    )


def call_tools(ann: User) -> None:
    """Have calls that wait, that were decided, and that a browser answers."""

    def act(what: str = "") -> str:
        """Act."""
        return f"acted {what}"

    tools = [
        Tool(act, name="pay", needs_approval=True, asks="pay {what}"),
        Tool(act, name="ask", needs_approval=True, approve_by="chatmemory.answer_conversation"),
        Tool(act, name="look", runs_in="client"),
    ]
    for memory_id, resume in (("waits", False), ("decided", True)):
        calls = calling(("1", "pay", '{"what": "him"}'), ("2", "ask", "{}"), ("3", "look", "{}"), text="So:")
        assistant = Assistant(ScriptedModel(calls, "Done."), tools=tools, persist="early")
        try:
            assistant.chat(memory_id, UserMessage("Pay him"), owner=ann)
        except ApprovalRequiredError as exc:
            pay, ask, look = exc.requests
        assign(Conversation.objects.get(memory_id=memory_id), ask.id, ann)
        if resume:
            given = [Decision(pay.id, True), Decision(ask.id, False, "Too much."), Output(look.id, {"at": "home"})]
            assistant.chat(memory_id, Resume(*given), owner=ann)


def hand_on(ann: User, ben: User) -> None:
    for memory_id, to in (("waiting", None), ("person", ben)):
        get_chat_memory(memory_id, ann).add(UserMessage("A person, please"), AiMessage("One moment"))
        talk = Conversation.objects.get(memory_id=memory_id)
        hand_over(talk, to)
    answer_as(talk, ben, "Here I am.")
    LegalHold.objects.create(conversation=talk, reason="Case 1", placed_by="ben")
    LegalHold.objects.create(owner=ben, reason="Case 2", placed_by="ann", until=MOMENT + datetime.timedelta(days=9**4))
    LegalHold.objects.create(owner=ben, reason="Case 3", placed_by="ann").end(ann)


def keep_notes(ann: User) -> None:
    keeping.keep(ann, "Likes tea")
    keeping.keep(ann, "Has a dog")
    keeping.drop(ann, 1)
    keeping.change(ann, 2, "Has two dogs")
    keeping.switch(ann, on=False)


def count_calls(ann: User) -> None:
    used = TokenUsage(100, 50, 150, 40, 20, 30, 10)
    for usage in (used, None):
        with record_call("other", "gpt-4o", owner=ann, memory_id="verbs", labels={"tenant": "a"}) as call:
            call.sends("some text")
            if usage:
                call.used(usage)
    with suppress(OSError), record_call("title", "gpt-4o", owner=ann):
        raise OSError
    ModelCall.objects.update(created_at=MOMENT)
    sum_calls()


def leave(ann: User) -> None:
    """Leave what processes leave that are killed while they answer, erase, or delete a file."""
    talk = Conversation.objects.get(memory_id="person")
    later = timezone.now()
    run = Run.objects.create(
        conversation=talk,
        active=talk.pk,
        assistant="support",
        question=1,
        next_sequence=3,
        fence=1,
        lease=later,
        listened_at=later,
        is_stopping=True,
        context="tenant",
        asked=json.dumps({"id": str(uuid4())}),
        language="de",
        time_zone="Europe/Berlin",
        reserved=1000,
        reserved_cost="0.5",
        labels={"tenant": "a"},
        created_at=MOMENT,
    )
    AnswerChunk.objects.create(memory_id="person", answer_id=run.pk.hex, position=1, data="data: …", written_at=later)
    Conversation.objects.filter(pk=talk.pk).update(fence=1)
    gone = Conversation.objects.create(memory_id="gone", owner=ann)
    erase(Conversation.objects.filter(pk=gone.pk))
    ErasedConversation.objects.create(id=gone.pk)
    MediaDeletion.objects.create(name="chatmemory/aa/gone", owner=str(ann.pk), conversation=gone.pk, since=MOMENT)
