"""Conversion between requests or responses and messages, also for sites that store an agent's history themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter

from chatmemory_django.formats.pydantic_ai import from_message, to_new_messages
from chatmemory_django.messages import ChatMessage, NewMessage


def to_pydantic_ai(messages: Iterable[ChatMessage]) -> list[ModelMessage]:
    """Convert *messages* to requests and responses, for ``message_history``; parts of a request are joined again."""
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
    Convert requests and responses, for example ``result.new_messages()``, to messages; a request may become several.

    Raises:
        UserError: One of them is neither, or cannot be serialized to JSON.

    """
    return [new.message for _, group in stored_form(model_messages) for new in group]


def stored_form(model_messages: Sequence[ModelMessage]) -> list[tuple[dict[str, Any], list[NewMessage]]]:
    """Return each of *model_messages* as JSON and as the rows that represent it; raise ``UserError`` as above."""
    try:
        # Errors are found by reading the JSON back, and reported without values, which pydantic's warnings would
        # contain.
        items = ModelMessagesTypeAdapter.dump_python(list(model_messages), mode="json", warnings=False)
        ModelMessagesTypeAdapter.validate_python(items)
        return [(item, to_new_messages(item, f"messages[{index}]")) for index, item in enumerate(items)]
    except ValidationError as exc:
        raise UserError(f"messages must be requests and responses of pydantic-ai; invalid: {paths_in(exc)}.") from None
    except (TypeError, ValueError) as exc:
        raise UserError(str(exc)) from exc


def paths_in(exc: ValidationError) -> str:
    """Return the paths of the errors in *exc*, whose own text contains the messages."""
    return ", ".join(dict.fromkeys(".".join(map(str, error["loc"])) for error in exc.errors(include_input=False)))
