"""What the AI SDK's clients post: the user's last message, or what was decided on the calls of an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import msgspec

from chatmemory_django import conf
from chatmemory_django.chat.answers.questions import Question
from chatmemory_django.chat.approvals import Decision, Resume
from chatmemory_django.chat.ui_messages import from_ui_message
from chatmemory_django.chat.ui_messages.files import to_part
from chatmemory_django.codec import message_to_json
from chatmemory_django.core.limits import RAW_BYTES, VALUE_BYTES, check_values, checked_client_message_id
from chatmemory_django.core.media import source_of
from chatmemory_django.messages import Content, DetailLevel, UserMessage

MAX_DECISIONS = 100
"""How many decisions on calls one request has at most."""

MISSING = "missing required field"
"""What msgspec's errors have where a body has none of the AI SDK's shapes."""

EXAMPLE = (
    'A question is {"id": "<UUID>", "messages": [{"id": "1", "role": "user", '
    '"parts": [{"type": "text", "text": "\N{HORIZONTAL ELLIPSIS}"}]}]}.'
)

_T = TypeVar("_T")

_NULL = msgspec.Raw(b"null")


def _no_file(url: str) -> None:
    """Return None: *url* is not the address of a stored file."""


class Posted(msgspec.Struct, rename="camel"):
    """
    The fields that are used of what the AI SDK posts: all messages of the chat, or only the last one.

    The messages are not decoded: only the user's last one is used, and a body may have very many.
    """

    id: str
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    message_id: str | None = None
    """The id of the message to regenerate, if the client sent one."""
    messages: msgspec.Raw = _NULL
    message: msgspec.Raw = _NULL

    @property
    def is_regenerate(self) -> bool:
        """Whether an answer is to be generated again."""
        return self.trigger == "regenerate-message"

    def question(self, stored_file: Callable[[str], Content | None] = _no_file) -> Question | Resume:
        """
        Return the user's last message: nothing else that the client sends is trusted.

        It is None if there is none to regenerate. If an answer with approvals is last, return what was decided: of an
        answer, the ids of its approvals and the decisions count, and nothing else. *stored_file* returns the stored
        file that the chat serves at a URL; None for any other URL. Raises ``ValueError`` with the path of what is
        invalid.
        """
        checked_client_message_id(self.message_id or None, "$.messageId")
        found, path = self._last()
        if found.get("role") != "user":
            if self.is_regenerate:
                return Question(None)
            if (resume := _resume(found, path)) is not None:
                return resume
            hint = "the tools of this chat run on the server." if found else f"there is no message. {EXAMPLE}"
            raise ValueError(f"{path}.role must be 'user': {hint}")
        name: object = found.get("id")
        settings = conf.chat()
        try:
            found, stored = _with_files(found, stored_file, settings["MAX_PARTS"])
            message = from_ui_message(
                found,
                max_text_length=settings["MAX_TEXT_LENGTH"],
                max_parts=settings["MAX_PARTS"],
                image_detail=DetailLevel[settings["IMAGE_DETAIL"]],
            )
            message = _as_stored(message, stored) if stored else message
            name = checked_client_message_id(name, "$.id") if isinstance(name, str) and name else None
            _check_size(len(message_to_json(message).encode()))
        except ValueError as exc:
            raise ValueError(str(exc).replace("$", path, 1)) from None
        return Question(message, None, name)

    def _last(self) -> tuple[dict[str, Any], str]:
        """Return the last message, and its path; to regenerate, the last one that is not an answer."""
        if self.messages == _NULL:
            there = self.message != _NULL
            return _shaped(_read(self.message, Any, "$.message"), "$.message") if there else {}, "$.message"
        messages = _read(self.messages, list[msgspec.Raw], "$.messages", RAW_BYTES)
        last = len(messages) - 1
        while self.is_regenerate and last >= 0 and _role(messages[last]) == "assistant":
            last -= 1
        path = f"$.messages[{max(last, 0)}]"
        if last < 0:
            return {}, path
        message = messages[last]
        del messages
        return _shaped(_read(message, Any, path), path), path


def read_body(content: bytes) -> Posted:
    """Parse *content*, the JSON of the AI SDK; raise ``ValueError`` with the path of what is invalid."""
    try:
        return _decoded(content, Posted, "$")
    except ValueError as exc:
        raise ValueError(f"{exc.args[0]}. {EXAMPLE}" if MISSING in exc.args[0] else exc.args[0]) from None


def _shaped(message: Any, path: str) -> dict[str, Any]:
    """Return *message*, or raise ``ValueError`` with an example if it is none of the AI SDK's."""
    if not isinstance(message, dict):
        kind = "array" if isinstance(message, list) else type(message).__name__
        raise ValueError(f"Expected `object`, got `{kind}` - at `{path}`. {EXAMPLE}")  # noqa: TRY004  # of the body
    if "parts" not in message and message.get("role") == "user":
        raise ValueError(f"{path}.parts is missing. {EXAMPLE}")
    return message


def _resume(message: Mapping[str, Any], path: str) -> Resume | None:
    """Return what was decided on the calls in an answer that a page sends; None if none of them has an approval."""
    parts = message.get("parts")
    if message.get("role") != "assistant" or not isinstance(parts, list):
        return None
    asked = [part for part in parts if isinstance(part, dict) and isinstance(part.get("approval"), dict)]
    decided = [part["approval"] for part in asked if part.get("state") == "approval-responded"]
    if len(decided) > MAX_DECISIONS:
        raise ValueError(f"{path}.parts: at most {MAX_DECISIONS} approvals are allowed.")
    return Resume(*(_decision(approval, path) for approval in decided)) if asked else None


def _decision(approval: dict[str, Any], path: str) -> Decision:
    name, approved, reason = approval.get("id"), approval.get("approved"), approval.get("reason")
    if isinstance(name, str) and isinstance(approved, bool) and isinstance(reason, str | None):
        return Decision(name, approved, reason or "")
    raise ValueError(f'{path}: an approval is {{"id": "<UUID>", "approved": true}}, and may have a reason, a text.')


class _Role(msgspec.Struct):
    role: str = ""


def _role(message: msgspec.Raw) -> str:
    """Return the role of *message* without decoding the rest of it; empty if it has none."""
    try:
        return msgspec.json.decode(message, type=_Role).role
    except (ValueError, RecursionError):
        return ""


def _read(value: msgspec.Raw, type: type[_T], path: str, value_bytes: int = VALUE_BYTES) -> _T:
    """Decode *value*, unless it would take too much memory; ``ValueError`` with its *path* if it is invalid."""
    try:
        check_values(bytes(value), value_bytes)
    except ValueError as exc:
        raise ValueError(f"{path}: {exc}") from None
    return _decoded(value, type, path)


def _decoded(value: bytes | msgspec.Raw, type: type[_T], path: str) -> _T:
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
        if not isinstance(part, dict) or part.get("type") != "file":
            continue
        url = part.get("url")
        try:
            content = stored_file(url) if isinstance(url, str) else None
        except ValueError as exc:
            raise ValueError(f"$.parts[{index}].url: {exc}") from None
        if content is not None:
            parts[index] = {**part, "url": (to_part(content) or {}).get("url")}
            size += len(parts[index]["url"])
            _check_size(size)  # before the next one is read: an address is short, and can be sent many times
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


def _check_size(size: int) -> None:
    most = conf.max_message_bytes()
    if size > most:
        raise ValueError(f"$: the message has {size} bytes; at most {most} are allowed. Send smaller files.")
