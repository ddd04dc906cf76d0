"""Validation of the ids that callers choose: memory ids and client message ids."""

from __future__ import annotations

import uuid

MAX_MEMORY_ID_LENGTH = 255
MAX_CLIENT_MESSAGE_ID_LENGTH = 64


EDIT = "#edit-"
"""Separates the client message id of a question from the suffix that makes the id of each edited version unique."""


def memory_key(memory_id: object) -> str:
    """
    Return the string under which *memory_id* is stored.

    Raises:
        TypeError: *memory_id* is None.
        ValueError: Its ``str()`` is empty, too long, or cannot be stored.

    """
    if memory_id is None:
        raise TypeError("A memory id must not be None; use a value with a stable str().")
    key = str(memory_id)
    if not 1 <= len(key) <= MAX_MEMORY_ID_LENGTH:
        raise ValueError(
            f"A memory id must have 1 to {MAX_MEMORY_ID_LENGTH} characters; this one has {len(key)}: {key[:20]!r}."
        )
    return _checked_characters("A memory id", key)


def is_uuid(memory_id: str) -> bool:
    """Return whether *memory_id* is a UUID as Python writes it."""
    try:
        return str(uuid.UUID(memory_id)) == memory_id
    except ValueError:
        return False


def checked_client_message_id(client_message_id: str | None, where: str) -> str | None:
    """
    Return *client_message_id* unchanged.

    Raises:
        TypeError: It is neither a str nor None; the error names *where* it was.
        ValueError: It is empty, too long, or cannot be stored.

    """
    if client_message_id is None:
        return None
    if not isinstance(client_message_id, str):
        raise TypeError(f"{where} must be a str or None, not {type(client_message_id).__name__}.")
    if not 1 <= len(client_message_id) <= MAX_CLIENT_MESSAGE_ID_LENGTH:
        raise ValueError(
            f"{where} must have 1 to {MAX_CLIENT_MESSAGE_ID_LENGTH} characters, not {len(client_message_id)}."
        )
    return _checked_characters(where, client_message_id)


def unedited(client_message_id: str) -> str:
    """Return the id by which a client knows the message *client_message_id*: the id of its first version."""
    return client_message_id.partition(EDIT)[0]


def _checked_characters(name: str, text: str) -> str:
    try:
        text.encode()
        is_storable = "\0" not in text
    except UnicodeEncodeError:
        is_storable = False
    if not is_storable:
        raise ValueError(f"{name} must not hold NUL characters or lone surrogates, but is {text!r}.")
    return text
