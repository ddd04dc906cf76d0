"""Requests and responses as messages, and back, for those who keep the history of an agent themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter

from chatmemory_django.formats.pydantic_ai import from_message, to_given
from chatmemory_django.formats.verbatim import Given
from chatmemory_django.messages import ChatMessage


def to_pydantic_ai(messages: Iterable[ChatMessage]) -> list[ModelMessage]:
    """Return *messages* as requests and responses, for ``message_history``; parts of a request are one again."""
    items: list[dict[str, Any]] = []
    for item in (item for message in messages for item in from_message(message)):
        before = items[-1] if items else {}
        if all(each.keys() == {"parts", "kind"} and each["kind"] == "request" for each in (before, item)):
            before["parts"] += item["parts"]
        else:
            items.append(item)
    return ModelMessagesTypeAdapter.validate_python(items)


def from_pydantic_ai(model_messages: Sequence[ModelMessage]) -> list[ChatMessage]:
    """
    Return requests and responses, ``result.new_messages()`` for example, as messages; a request may be several.

    Raises:
        UserError: One of them is none, or cannot be JSON.

    """
    return [given.message for _, group in stored_form(model_messages) for given in group]


def stored_form(model_messages: Sequence[ModelMessage]) -> list[tuple[dict[str, Any], list[Given]]]:
    """Return each of *model_messages* as JSON and as the rows that stand for it; ``UserError`` as above."""
    try:
        # What is wrong is found when it is read back, and said without the values that a warning has in it.
        items = ModelMessagesTypeAdapter.dump_python(list(model_messages), mode="json", warnings=False)
        ModelMessagesTypeAdapter.validate_python(items)
        return [(item, to_given(item, f"messages[{index}]")) for index, item in enumerate(items)]
    except ValidationError as exc:
        raise UserError(
            f"messages must be requests and responses of pydantic-ai; this is wrong: {places_in(exc)}."
        ) from None
    except (TypeError, ValueError) as exc:
        raise UserError(str(exc)) from exc


def places_in(exc: ValidationError) -> str:
    """Return where what *exc* is about is wrong; its own text has what was said in it."""
    return ", ".join(dict.fromkeys(".".join(map(str, error["loc"])) for error in exc.errors(include_input=False)))
