"""
What the AI SDK's clients post: the user's last message and the ids of those before it, or an answer with what its calls
have waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar
from uuid import UUID

import msgspec

from chatmemory_django import conf
from chatmemory_django.chat.answers.questions import Question
from chatmemory_django.chat.answers.shown import Shown
from chatmemory_django.chat.approvals import Decision, Output
from chatmemory_django.chat.conf import chat_settings
from chatmemory_django.chat.ui_messages import from_ui_message
from chatmemory_django.chat.ui_messages.files import is_text, to_part
from chatmemory_django.chat.ui_messages.reading import verbatim
from chatmemory_django.codec import message_to_json
from chatmemory_django.core.limits import (
    MAX_CLIENT_MESSAGE_ID_LENGTH,
    RAW_BYTES,
    VALUE_BYTES,
    check_values,
    checked_client_message_id,
)
from chatmemory_django.core.media import AddressError, source_of
from chatmemory_django.messages import Content, DetailLevel, UserMessage

MAX_DECISIONS = 100
"""How many decisions on calls one request has at most."""

MAX_SHOWN = 100
"""How many messages in front of a question are looked at: nearly always, an answer and its question are enough."""

ID_BYTES = 12 * MAX_CLIENT_MESSAGE_ID_LENGTH + 2
"""How many bytes of JSON the longest id of a message takes: twelve for a character that is escaped as a pair."""

OUTPUT_ERROR = "output-error"
OUTPUT_STATES = ("output-available", OUTPUT_ERROR)
"""The states of the part of a call that has an output."""

MISSING = "missing required field"
"""What msgspec's errors have where a body has none of the AI SDK's shapes."""

EXAMPLE = (
    'A question is {"id": "<UUID>", "messages": [{"id": "1", "role": "user", '
    '"parts": [{"type": "text", "text": "\N{HORIZONTAL ELLIPSIS}"}]}]}.'
)

MAX_REST_BYTES = 64 * 1024
"""How many bytes the fields of a body may have together that are not of the AI SDK: options, such as a model."""

_T = TypeVar("_T")

NULL = msgspec.Raw(b"null")


def _no_file(url: str) -> None:
    """Return None: *url* is not the address of a stored file."""


class PostedAnswer(NamedTuple):
    """
    The answer *id* as a page sends it, with what was decided on its calls, and what the page has as the output of some.

    The *parts* of these are by the id of the call and not checked yet, as most are results that the server has sent.
    """

    id: str
    decisions: Sequence[Decision]
    parts: Mapping[str, tuple[Mapping[str, Any], str]]

    def output(self, call: str, id: UUID) -> Output:
        """Return what the page has for a *call* that waits for the output *id*; raise ``ValueError`` with its path."""
        part, path = self.parts[call]
        is_error = part["state"] == OUTPUT_ERROR
        key = "errorText" if is_error else "output"
        path, most = f"{path}.{key}", chat_settings().MAX_TEXT_LENGTH
        value = verbatim(part.get(key), path)
        if is_error and not isinstance(value, str):
            raise ValueError(f"{path}: it must be a string.")
        if (length := len(value if isinstance(value, str) else msgspec.json.encode(value).decode())) > most:
            raise ValueError(f"{path}: it has {length} characters; at most {most} are allowed.")
        return Output(id, value, is_error)


class Posted(msgspec.Struct, rename="camel"):
    """
    The fields that are used of what the AI SDK posts: all messages of the chat, or only the last one.

    The messages are not decoded: only the user's last one is used, and the ids and roles of a few before it; a body may
    have very many.
    """

    id: str
    trigger: Literal["submit-message", "regenerate-message"] | None = None
    message_id: str | None = None
    """The id of the message to regenerate, if the client sent one."""
    messages: msgspec.Raw = NULL
    message: msgspec.Raw = NULL
    assistant: msgspec.Raw = NULL

    @property
    def assistant_name(self) -> str | None:
        """The name of the assistant that is asked, if the client sent one; a site without any name reads none."""
        return read_value(self.assistant, str | None, "$.assistant") if chat_settings().ASSISTANTS else None  # type: ignore[arg-type]

    @property
    def is_regenerate(self) -> bool:
        """Whether an answer is to be generated again."""
        return self.trigger == "regenerate-message"

    def question(
        self,
        stored_file: Callable[[str], Content | None] = _no_file,
        check: Callable[[UserMessage], object] = lambda message: None,
    ) -> Question | PostedAnswer:
        """
        Return the user's last message: nothing else that the client sends is trusted.

        With a ``trigger``, the list is all that the page shows, and the question has the ids of those before it. It is
        None if there is none to regenerate. If an answer with calls is last, return that: of an answer, the decisions
        and the outputs count with the ids of what they are for, and nothing else. *stored_file* returns the stored file
        that the chat serves at a URL; None for any other URL. *check* is called with the message before they take
        their place. Raises ``ValueError`` with the path of what is invalid.
        """
        checked_client_message_id(self.message_id or None, "$.messageId")
        found, path, earlier = self._last()
        if found.get("role") != "user":
            if self.is_regenerate:
                return Question(None)
            if (answer := _answer(found, path)) is not None:
                return answer
            hint = "no call of this answer has a decision or an output." if found else f"there is no message. {EXAMPLE}"
            raise ValueError(f"{path}.role must be 'user': {hint}")
        name: object = found.get("id")
        settings = chat_settings()
        try:
            found, stored = _with_files(found, stored_file, settings.MAX_PARTS)
            message = from_ui_message(
                found,
                max_text_length=settings.MAX_TEXT_LENGTH,
                max_parts=settings.MAX_PARTS,
                image_detail=DetailLevel[settings.IMAGE_DETAIL],
            )
            check(message)
            message = _as_stored(message, stored) if stored else message
            name = checked_client_message_id(name, "$.id") if isinstance(name, str) and name else None
            check_size(len(message_to_json(message).encode()))
        except AddressError:
            raise
        except ValueError as exc:
            raise ValueError(str(exc).replace("$", path, 1)) from None
        return Question(message, None, name, shown=None if earlier is None else _shown(earlier))

    def _last(self) -> tuple[dict[str, Any], str, Sequence[msgspec.Raw] | None]:
        """
        Return the last message, its path, and those that the page shows before it, if that is known.

        To regenerate, it is the last one that is not an answer.
        """
        if self.messages == NULL:
            there = self.message != NULL
            return _shaped(read_value(self.message, Any, "$.message"), "$.message") if there else {}, "$.message", None
        messages = read_value(self.messages, list[msgspec.Raw], "$.messages", RAW_BYTES)
        last = len(messages) - 1
        while self.is_regenerate and last >= 0 and _header(messages[last]).role == "assistant":
            last -= 1
        path = f"$.messages[{max(last, 0)}]"
        if last < 0:
            return {}, path, None
        message = messages[last]
        earlier = None if self.trigger is None else messages[max(0, last - MAX_SHOWN - 1) : last]
        del messages
        return _shaped(read_value(message, Any, path), path), path, earlier


_OWN = frozenset(Posted.__struct_encode_fields__)


def read_body(content: bytes) -> Posted:
    """Parse *content*, the JSON of the AI SDK; raise ``ValueError`` with the path of what is invalid."""
    try:
        return decode_body(content, Posted, "$")
    except ValueError as exc:
        raise ValueError(f"{exc.args[0]}. {EXAMPLE}" if MISSING in exc.args[0] else exc.args[0]) from None


def read_rest(content: bytes) -> dict[str, Any]:
    """Return what *content*, a body that ``read_body`` has read, has besides; raise ``ValueError`` as that does."""
    every = decode_body(content, dict[str, msgspec.Raw], "$")  # deeper in the stack than before
    rest = {name: value for name, value in every.items() if name not in _OWN}
    if (size := sum(len(name) + len(bytes(value)) for name, value in rest.items())) > MAX_REST_BYTES:
        raise ValueError(f"$: the fields beside the messages have {size} bytes; at most {MAX_REST_BYTES} are allowed.")
    return {name: read_value(value, Any, f"$.{name}") for name, value in rest.items()}


def _shaped(message: Any, path: str) -> dict[str, Any]:
    """Return *message*, or raise ``ValueError`` with an example if it is none of the AI SDK's."""
    if not isinstance(message, dict):
        kind = "array" if isinstance(message, list) else type(message).__name__
        raise ValueError(f"Expected `object`, got `{kind}` - at `{path}`. {EXAMPLE}")  # noqa: TRY004  # of the body
    if "parts" not in message and message.get("role") == "user":
        raise ValueError(f"{path}.parts is missing. {EXAMPLE}")
    return message


def _answer(message: Mapping[str, Any], path: str) -> PostedAnswer | None:
    """Return an answer that a page sends; None if none of its calls has an approval or an output."""
    parts = message.get("parts")
    if message.get("role") != "assistant" or not isinstance(parts, list):
        return None
    asked = [part for part in parts if isinstance(part, dict) and isinstance(part.get("approval"), dict)]
    decided = [part["approval"] for part in asked if part.get("state") == "approval-responded"]
    if len(decided) > MAX_DECISIONS:
        raise ValueError(f"{path}.parts: at most {MAX_DECISIONS} approvals are allowed.")
    outputs = {
        part["toolCallId"]: (part, f"{path}.parts[{index}]")
        for index, part in enumerate(parts)
        if isinstance(part, dict) and part.get("state") in OUTPUT_STATES and isinstance(part.get("toolCallId"), str)
    }
    name = message.get("id")
    if not (asked or outputs):
        return None
    decisions = [_decision(approval, path) for approval in decided]
    return PostedAnswer(name if isinstance(name, str) else "", decisions, outputs)


def _decision(approval: dict[str, Any], path: str) -> Decision:
    name, approved, reason = approval.get("id"), approval.get("approved"), approval.get("reason")
    if isinstance(name, str) and isinstance(approved, bool) and isinstance(reason, str | None):
        return Decision(name, approved, reason or "")
    raise ValueError(f'{path}: an approval is {{"id": "<UUID>", "approved": true}}, and may have a reason, a text.')


class _Header(msgspec.Struct):
    role: str = ""
    id: msgspec.Raw = NULL


def _header(message: msgspec.Raw) -> _Header:
    """Return the role and the id of *message* without decoding the rest of it; none if it has none."""
    try:
        return msgspec.json.decode(message, type=_Header)
    except (ValueError, RecursionError):
        return _Header()


def _name(header: _Header) -> str:
    """Return the id in *header*; empty if no stored message can have it."""
    try:
        name = checked_client_message_id(msgspec.json.decode(memoryview(header.id)[:ID_BYTES], type=str), "$.id")
    except ValueError:
        return ""
    return name or ""


def _shown(earlier: Sequence[msgspec.Raw]) -> list[Shown]:
    """
    Return the messages *earlier* than a question, the nearest first, up to a question that has an answer.

    Raises ``ValueError`` if there are too many without such a question.
    """
    shown: list[Shown] = []
    for message in reversed(earlier):
        header = _header(message)
        if header.role not in {"user", "assistant"}:
            continue
        is_answer = header.role == "assistant"
        has_answer = bool(shown) and shown[-1].is_answer
        shown.append(Shown(_name(header), is_answer))
        if has_answer and not is_answer:
            return shown
    if len(earlier) > MAX_SHOWN:
        raise ValueError(f"$.messages: at most {MAX_SHOWN} may be in front of a message without an answered one.")
    return shown


def read_value(value: msgspec.Raw, type: type[_T], path: str, value_bytes: int = VALUE_BYTES) -> _T:
    """Decode *value*, unless it would take too much memory; ``ValueError`` with its *path* if it is invalid."""
    try:
        check_values(bytes(value), value_bytes)
    except ValueError as exc:
        raise ValueError(f"{path}: {exc}") from None
    return decode_body(value, type, path)


def decode_body(value: bytes | msgspec.Raw, type: type[_T], path: str) -> _T:
    """Decode *value*, whose fields are bounded in their number, or not decoded; otherwise, like ``read_value``."""
    try:
        return msgspec.json.decode(value, type=type)
    except msgspec.ValidationError as exc:
        what, found, where = str(exc).partition(" - at `$")
        at = f"{path}{where}" if found else f"{path}`"
        raise ValueError(f"{what} - at `{at}" if at != "$`" else what) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("The body must be JSON.") from None


def _with_files(
    message: dict[str, Any], stored_file: Callable[[str], Content | None], max_parts: int
) -> tuple[dict[str, Any], dict[int, Content]]:
    """
    Return *message* with data URLs in place of the addresses at which the chat serves files.

    Returns these files as well, as they are stored, by their positions among the files of the message.
    """
    parts = message.get("parts")
    if not isinstance(parts, list) or len(parts) > max_parts:
        return message, {}
    parts, stored, count, size = list(parts), {}, 0, 0
    for index, part in enumerate(parts):
        if not isinstance(part, dict) or part.get("type") != "file" or is_text(part.get("mediaType")):
            continue
        url = part.get("url")
        try:
            content = stored_file(url) if isinstance(url, str) else None
        except ValueError as exc:
            raise ValueError(f"$.parts[{index}].url: {exc}") from None
        if content is not None:
            parts[index] = {**part, "url": (to_part(content) or {}).get("url")}
            size += len(parts[index]["url"])
            check_size(size)  # before the next one is read: an address is short, and can be sent many times
            stored[count] = content
        count += 1
    return {**message, "parts": parts}, stored


def _as_stored(message: UserMessage, stored: Mapping[int, Content]) -> UserMessage:
    """Return *message* with the files *stored*, by their positions: a page is not shown all that is stored of one."""
    contents, count = list(message.contents), 0
    for index, content in enumerate(contents):
        if source_of(content) is not None:
            contents[index] = stored.get(count, content)
            count += 1
    return msgspec.structs.replace(message, contents=tuple(contents))


def check_size(size: int) -> None:
    """Raise ``ValueError`` if a message of *size* bytes is too large."""
    most = conf.general().MAX_MESSAGE_BYTES
    if size > most:
        raise ValueError(f"$: the message has {size} bytes; at most {most} are allowed. Send smaller files.")
