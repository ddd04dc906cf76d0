"""The data that pydantic-ai keeps with a conversation: as it was saved, and updated for newer messages."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from django.db.models import OuterRef, Subquery
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_ai.conversation_store import ConversationRecord
from pydantic_ai.exceptions import UserError

from chatmemory_django.contrib.adapters.pydantic_ai.entries import StoredEntry, ends_of, newest
from chatmemory_django.contrib.adapters.pydantic_ai.messages import paths_in
from chatmemory_django.contrib.adapters.records.models import MAX_SCOPE_LENGTH, Record
from chatmemory_django.core.limits import is_storable, memory_key
from chatmemory_django.db.moments import aware
from chatmemory_django.models import Conversation, ConversationQuerySet, Message, MessageQuerySet

# A list, since a dataclass takes no configuration. As in ModelMessagesTypeAdapter, bytes are Base64.
_records = TypeAdapter(
    list[ConversationRecord],
    config=ConfigDict(defer_build=True, ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants"),
)


def to_text(record: ConversationRecord) -> str:
    """Return *record* as JSON; raise ``UserError`` if it cannot be stored."""
    which = f"The record of conversation {record.conversation_id!r}"
    try:
        memory_key(record.conversation_id)
        _check_scope(record.scope)
        plain = _records.dump_python([record], mode="json", warnings=False)
        text = json.dumps(plain)  # in ASCII, so that any character can be stored
        of_text(text)
    except ValidationError as exc:
        raise UserError(f"{which} cannot be stored; invalid: {paths_in(exc)}.") from None
    except (TypeError, ValueError, RecursionError) as exc:
        raise UserError(f"{which} cannot be stored: {exc}") from exc
    return text


def _check_scope(scope: str | None) -> None:
    if scope is not None and not (len(scope) <= MAX_SCOPE_LENGTH and is_storable(scope)):
        raise ValueError(f"scope must have at most {MAX_SCOPE_LENGTH} characters, and no NUL or lone surrogate.")


def of_text(text: str) -> ConversationRecord:
    """Return the record for the JSON that ``to_text`` returned."""
    return _records.validate_python(json.loads(text))[0]


def with_heads(conversations: ConversationQuerySet) -> ConversationQuerySet:
    """Return *conversations* with their stored record, and the id of their newest message as ``head``."""
    history = Message.objects.history().filter(conversation=OuterRef("pk")).order_by("-sequence")
    head = Subquery(history.values("client_message_id")[:1])
    return conversations.select_related("record").annotate(head=head)


def last_saved(scope: str | None, limit: int | None, using: str) -> list[Conversation]:
    """Return the conversations whose records were saved last, with *scope* if it is given, as ``with_heads`` does."""
    rows = Record.objects.using(using).order_by("-updated_at")
    rows = rows if scope is None else rows.filter(scope=scope)
    if limit is None:
        return list(with_heads(Conversation.objects.using(using).filter(record__in=rows.order_by())))
    # Filter by the index first: with a join, MariaDB would read and sort all rows.
    keys = list(rows.values_list("pk", flat=True)[:limit])
    return list(with_heads(Conversation.objects.using(using).filter(pk__in=keys)))


def read(conversation: Any) -> ConversationRecord | None:
    """Return the up-to-date record of *conversation*, one of ``with_heads``."""
    row: Record | None = getattr(conversation, "record", None)
    if row is not None and conversation.head is not None:
        stored = of_text(row.text)
        if stored.head_id == conversation.head:
            return stored
    messages = Message.objects.using(conversation._state.db).filter(conversation=conversation.pk)
    return up_to_date(conversation, row, next(iter(newest(messages)), None), messages)


def up_to_date(
    conversation: Conversation, row: Record | None, head: StoredEntry | None, messages: MessageQuerySet
) -> ConversationRecord | None:
    """
    Return the record of *conversation*, whose newest entry is *head*; None if it has neither messages nor a record.

    If the site has added messages, the record continues from them and has another revision, so that a client that has
    not read them cannot save it.
    """
    head_id = None if head is None else head.id
    if row is None:
        if head_id is None:
            return None
        return ConversationRecord(
            conversation_id=conversation.memory_id,
            head_id=head_id,
            revision=f"@{head_id}",
            updated_at=aware(conversation.updated_at),
        )
    stored = of_text(row.text)
    if stored.head_id == head_id:
        return stored
    # The former history is a branch if it still exists and is not in use.
    tips = dict.fromkeys([*stored.branches, *([] if stored.head_id is None else [stored.head_id])])
    ends = ends_of(messages, conversation.pk, list(tips))
    left = messages.history(all_branches=True).filter(sequence__in=ends.values(), on_path=False)
    left_at = set(left.values_list("sequence", flat=True))
    return replace(
        stored,
        head_id=head_id,
        deferred_tool_requests=None,
        branches=[tip for tip in tips if ends.get(tip) in left_at],
        revision=f"{stored.revision}@{head_id or ''}",
    )
