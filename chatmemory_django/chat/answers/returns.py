"""The return types of an assistant: text, or a value of any type."""

from __future__ import annotations

from typing import Any

import pydantic

from chatmemory_django.chat.model import ChatModelError, ChatResponse, FinishReason, ResponseFormat
from chatmemory_django.chat.ui_messages.writing import answer_text

_VALUE = "value"
"""The key of a value that is not a JSON object: models can only be asked for objects."""


class InvalidAnswerError(ChatModelError):
    """The model's answer does not have the requested type."""


class Text:
    """An answer as text, in ``value`` once it is read."""

    response_format: ResponseFormat | None = None
    value: Any = ""

    def read(self, response: ChatResponse | None) -> None:
        """Set ``value`` to the text of the last *response*, or to the model's reason for a refusal."""
        message = None if response is None else response.ai_message
        if message is not None:
            self.value = answer_text(message)


class Typed(Text):
    """An answer of the type *returns*, for which the model is asked for JSON."""

    def __init__(self, returns: Any) -> None:
        self._adapter = pydantic.TypeAdapter[Any](returns)
        schema = self._adapter.json_schema()
        self._is_wrapped = schema.get("type") != "object"
        if self._is_wrapped:
            definitions = schema.pop("$defs", None)
            schema = {"type": "object", "properties": {_VALUE: schema}, "required": [_VALUE]}
            schema |= {} if definitions is None else {"$defs": definitions}
            # The value is read as a part of the JSON: read on its own, it would be a Python object.
            self._adapter = pydantic.TypeAdapter(pydantic.create_model("Answer", value=(returns, ...)))
        self.response_format = ResponseFormat(schema)

    def read(self, response: ChatResponse | None) -> None:
        """Set ``value``; raise ``InvalidAnswerError`` if the answer does not have the type."""
        super().read(response)
        if response is not None and response.metadata.finish_reason == FinishReason.LENGTH:
            raise InvalidAnswerError("The model's answer was cut by its token limit; increase max_output_tokens.")
        try:
            read = self._adapter.validate_json(self.value)
        except pydantic.ValidationError as exc:
            paths = ", ".join(sorted({".".join(map(str, each["loc"])) or "the JSON itself" for each in exc.errors()}))
            raise InvalidAnswerError(
                f"The model's answer does not have the requested type. Invalid: {paths}."
            ) from None
        self.value = read.value if self._is_wrapped else read
