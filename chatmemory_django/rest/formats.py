"""What bodies say: messages in either format, in and out, and metadata."""

from __future__ import annotations

from typing import Any

from chatmemory_django import conf
from chatmemory_django.formats.openai_chat import from_openai, to_openai
from chatmemory_django.messages import ChatMessage
from chatmemory_django.rest.problems import bad_request
from chatmemory_django.rest.wire import converted
from chatmemory_django.rows import to_columns, to_metadata


def messages_in(given: list[dict[str, Any]]) -> list[ChatMessage]:
    """
    The messages that a body says: those of OpenAI have a ``role``, the others a ``type``.

    400 with the path of the first that is none, or that cannot be stored.
    """
    if len(given) > (most := conf.rest()["MAX_MESSAGES"]):
        raise bad_request("$.messages", f"It has {len(given)} messages, but may have {most}.")
    if any("role" in message for message in given):
        try:
            messages = from_openai(given)
        except ValueError as exc:
            path, _, what = str(exc).partition(": ")
            raise bad_request(f"$.messages{path.removeprefix('$')}", what) from None
    else:
        messages = [converted(each, ChatMessage, f"$.messages[{index}]") for index, each in enumerate(given)]
    for index, message in enumerate(messages):
        try:
            to_columns(message)
        except ValueError as exc:
            raise bad_request(f"$.messages[{index}]", str(exc)) from None
    return messages


def metadata_in(given: dict[str, Any] | None) -> Any:
    """The metadata that a body says; 400 if it cannot be stored."""
    try:
        return to_metadata(given)
    except ValueError as exc:
        raise bad_request("$.metadata", str(exc)) from None


def to_form(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    """*messages* in OpenAI's format; 400 if it has no place for one of them."""
    try:
        return to_openai(messages)
    except ValueError as exc:
        raise bad_request("?as", str(exc)) from None
