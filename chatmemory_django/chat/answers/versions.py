"""The versions of a question: as it was first asked, its edits, and the rows in which it was asked once more."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from chatmemory_django.chat.ui_messages import message_sequence, ui_id
from chatmemory_django.core.limits import EDIT, MAX_CLIENT_MESSAGE_ID_LENGTH
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Conversation, Message, MessageQuerySet
from chatmemory_django.models.alternatives import children_of

AGAIN = "#again-"
"""Separates the client message id of a question from the sequence of the row that could not be answered where it is."""

ROOM = len(EDIT) + 8
"""The length of the suffix that an edit adds to a client message id."""


def versions_of(conversation: Conversation, client_message_id: str) -> list[Message]:
    """
    Return the rows of all versions of the message with that id: those on the path first, then the newest.

    They are the message and its edits, and for each of these the row in which it was asked once more, with its edits.
    """
    history = conversation.history(all_branches=True)
    first = history.filter(client_message_id=client_message_id).first()
    if first is None and (sequence := message_sequence(client_message_id)):  # a page's id of a row without one
        first = history.filter(sequence=sequence, client_message_id=None, type=MessageType.USER).first()
    if first is None:  # it may have been removed, and its edits not
        return _in_order(_edits(history, client_message_id))
    versions: list[Message] = []
    asked = [first]
    while asked:
        rows = list(asked)
        for row in asked:
            rows += _edits(_beside(conversation, row), row.client_message_id or client_message_id)
        versions += rows
        asked = list(history.filter(client_message_id__in=map(id_again, rows)))
    return _in_order(versions)


def id_again(row: Message) -> str:
    """
    Return the client message id under which the question *row* is asked once more.

    It is always the same one, so that each further retry finds that message. The suffix of an edit fits behind it.
    """
    name, suffix = ui_id(row), f"{AGAIN}{row.sequence}"
    if len(name) + len(suffix) + ROOM > MAX_CLIENT_MESSAGE_ID_LENGTH:
        name = hashlib.sha256(name.encode()).hexdigest()[:32]
    return name + suffix


def _beside(conversation: Conversation, row: Message) -> MessageQuerySet:
    """Return the rows beside *row*, and those with a new system message between them and what they follow."""
    history = conversation.history(all_branches=True).order_by("sequence")
    parents, found = {conversation.parent_of(row.sequence) or 0}, set[int]()
    while parents:
        children = {child for parent in parents for child in children_of(history, parent)} - found
        found |= children
        systems = history.filter(sequence__in=children, type=MessageType.SYSTEM)
        parents = set(systems.values_list("sequence", flat=True))
    return history.filter(sequence__in=found - {row.sequence})


def _edits(rows: MessageQuerySet, client_message_id: str) -> list[Message]:
    """Return those of *rows* that are edits of the message with that id."""
    prefix = client_message_id + EDIT
    # SQL's LIKE is case-insensitive on SQLite.
    edits = rows.filter(client_message_id__startswith=prefix)
    return [row for row in edits if str(row.client_message_id).startswith(prefix)]


def _in_order(versions: Iterable[Message]) -> list[Message]:
    return sorted(versions, key=lambda row: (not row.on_path, -row.sequence))
