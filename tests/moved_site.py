"""
A site with something of every feature in its tables, and what these have, without what is of a site alone.

As a program, it fills a new site and exports it to a file of lines, or imports that file into one; then it writes the
rows of that site to the standard output.
"""

import json
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any

import django
from django.apps import apps
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db.models import Model

if __name__ == "__main__":
    django.setup()  # models are imported next

from chatmemory_django.chat.costs.summing import sum_calls
from chatmemory_django.chat.costs.tables import ModelCall, Span
from chatmemory_django.chat.people import answer_as
from chatmemory_django.contrib.notes.keeping import drop, keep, switch
from chatmemory_django.db.moments import aware, to_moment
from chatmemory_django.memory import MessageWindowChatMemory, SummarizingChatMemory
from chatmemory_django.messages import (
    AiMessage,
    NewMessage,
    SystemMessage,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation, Message
from chatmemory_django.models.messages import REMOVED
from chatmemory_django.operations import hand_over, rate
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.estimators import ADDITIVE_WORDS
from tests.pictures import picture, use_storage

NAMES = ("ann", "ben", "carla")

LEFT_OUT = {
    "chatmemory.erasedconversation": "messages that are still to be deleted",
    "chatmemory_chat.answerchunk": "pieces of answers that are being written",
    "chatmemory_chat.budgetlock": "no values",
    "chatmemory_chat.run": "answers that are being written",
    "chatmemory_chat.toolapproval": "decisions that are awaited, and those that were made",
    "chatmemory_encryption.origin": "where the sealed rows of a fork come from; they are sealed once more",
    "chatmemory_encryption.ownerkey": "keys are those of a site",
    "chatmemory_files.mediadeletion": "files that are still to be deleted",
    "chatmemory_holds.legalhold": "placed by the people of a site",
    "chatmemory_records.record": "another framework's state, which it writes itself",
}
"""The tables that exports have nothing of, and why."""

OWN = {
    "chatmemory.conversation": {"version", "fence", "summary_failure", "active_hour"},
    "chatmemory_files.mediafile": {"created_at", "name", "key_id"},
    "chatmemory_chat.callsum": {"run"},
}
"""The columns that are of a site alone: counters of its writes, names in its storage and of its runs."""


def fill() -> None:
    """Fill the tables of a site that has users."""
    ann, ben, carla = (get_user_model().objects.get_by_natural_key(name) for name in NAMES)
    call = ToolExecutionRequest(id="call_1", name="weather", arguments='{"city": "Kyoto"}')
    memory = MessageWindowChatMemory(max_messages=6, id="letters", store=DjangoChatMemoryStore(owner=ann))
    memory.add(SystemMessage("You write letters."), UserMessage("Dear reader 📮"), AiMessage("Dear writer", "Hm"))
    memory.add(NewMessage(UserMessage("Weather?"), {"n": 1.5}, "id-1"))
    memory.add(AiMessage(None, tool_execution_requests=[call]))
    memory.add(ToolExecutionResultMessage("call_1", "weather", "Rain"), AiMessage("Rain."), picture(1))
    memory.pin(2)
    letters = Conversation.objects.get(memory_id="letters")
    rate(letters, 7, 5, "Short")
    memory.add(UserMessage("Snow?"), AiMessage("No."))
    memory.rewind(8)
    memory.add(SystemMessage("You write short letters."), UserMessage("Sun?"), AiMessage("Yes."))
    memory.remove(3)
    Conversation.objects.filter(pk=letters.pk).update(is_archived=True, metadata={"topic": ["post", None]})
    letters.title = "Letters"
    letters.save(update_fields=["title"])

    tales: Any = SummarizingChatMemory(
        id="tales",
        max_tokens=30,
        token_count_estimator=ADDITIVE_WORDS,
        summarize=lambda *given: "So far.",
        summary_tokens=10,
        after_tokens=15,
        store=DjangoChatMemoryStore(owner=ben),
    )
    for number in range(6):
        tales.add(UserMessage(f"Tale {number}"), AiMessage(f"Once {number}"))
    nobodys = MessageWindowChatMemory(max_messages=6, id="nobody's", store=DjangoChatMemoryStore())
    nobodys.add(UserMessage("Whose?"))
    nobodys.clear()
    nobodys.add(UserMessage("Mine?"))
    asked = MessageWindowChatMemory(max_messages=6, id="asked", store=DjangoChatMemoryStore(owner=ben))
    asked.add(UserMessage("Is anybody there?"))
    answer_as(Conversation.objects.get(memory_id="asked"), carla, "I am.")
    waits = MessageWindowChatMemory(max_messages=6, id="waits", store=DjangoChatMemoryStore(owner=ann))
    waits.add(UserMessage("Hello?"))
    hand_over(Conversation.objects.get(memory_id="waits"))

    keep(ann, "Likes rain")
    keep(ann, "Gone soon")
    drop(ann, 2)
    keep(ann, "Lives in Kyoto")
    switch(ben, on=False)
    moment = datetime.now(UTC)
    for owner, conversation, days in ((ann, letters, 40), (ann, letters, 39), (ben, None, 39), (None, None, 0)):
        ModelCall.objects.create(
            owner=owner,
            conversation=conversation,
            purpose="answer",
            model="m",
            outcome="completed",
            input_tokens=10,
            output_tokens=days,
            cost=Decimal("0.0000012345"),
            labels={"tenant": "acme"},
            created_at=to_moment(moment - timedelta(days=days)),
            seconds=0.25,
        )
    sum_calls()
    ModelCall.objects.filter(output_tokens=40).delete()


def users(*names: str) -> None:
    """Create users with these *names*."""
    for name in names:
        get_user_model().objects.create_user(name)


def rows() -> dict[str, list[str]]:
    """Return what is in every table that exports have, by the name of the model, with names in place of keys."""
    named = {str(user.pk): user.get_username() for user in get_user_model().objects.all()}
    found: dict[str, list[str]] = {}
    for model in apps.get_models():
        label = model._meta.label_lower
        if label.startswith("chatmemory") and label not in LEFT_OUT and not model._meta.proxy:
            kept = model._default_manager.exclude(REMOVED) if model is Message else model._default_manager.all()
            found[label] = sorted(_row(row, label, named) for row in kept)
    return found


def _row(row: Model, label: str, named: dict[str, str]) -> str:
    values: dict[str, Any] = {}
    for field in row._meta.concrete_fields:
        value = getattr(row, field.attname)
        if field.name in OWN.get(label, ()) and not (field.name == "run" and getattr(row, "span", "") == Span.DAY):
            continue
        if field.name in {"owner", "person"}:
            value = named.get(str(value), "")
        elif field.name == "conversation" and value is not None:
            value = Conversation.objects.get(pk=value).memory_id
        elif field.name == "file":
            value = row.file.sha256  # type: ignore[attr-defined]
        elif field.primary_key and label != "chatmemory.message":
            continue
        elif field.name == "payload" and value is not None and '"author"' in value:
            message = json.loads(value)
            message["attributes"]["author"]["id"] = named[message["attributes"]["author"]["id"]]
            value = json.dumps(message)
        if isinstance(value, datetime):
            value = aware(value).astimezone(UTC).isoformat()
        elif isinstance(value, date | Decimal):
            value = str(value)
        values[field.name] = value
    return json.dumps(values, sort_keys=True, default=str)


def main(what: str, lines: str) -> None:
    """Fill a new site and export it to the file *lines*, or import that; then print the rows."""
    use_storage(settings)
    call_command("migrate", verbosity=0)
    users(*NAMES)
    if what == "fill":
        fill()
        call_command("export_chatmemory", output=Path(lines), verbosity=0)
    else:
        call_command("import_chatmemory", lines, verbosity=0, stdout=StringIO())
    print(json.dumps(rows()))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
