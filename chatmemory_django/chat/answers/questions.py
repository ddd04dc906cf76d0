"""
Questions: as the AI SDK's clients post them, and in a conversation.

There, a question is at the end, where it was asked before, or a new version of one that was.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from chatmemory_django import conf
from chatmemory_django.chat.answers.versions import id_again, versions_of
from chatmemory_django.chat.approvals import Decision, Resume
from chatmemory_django.chat.ui_messages import from_ui_message, message_sequence, ui_id
from chatmemory_django.chat.ui_messages.files import to_part
from chatmemory_django.codec import message_to_json
from chatmemory_django.core.limits import (
    EDIT,
    RAW_BYTES,
    VALUE_BYTES,
    check_values,
    checked_client_message_id,
    unedited,
)
from chatmemory_django.core.media import source_of
from chatmemory_django.memory import ChatMemory
from chatmemory_django.messages import Content, DetailLevel, MessageType, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.models.alternatives import children_of
from chatmemory_django.models.files import ConversationKey, whole
from chatmemory_django.operations.whole import as_kept
from chatmemory_django.stores.base import MessageNotFoundError
from chatmemory_django.stores.django import DjangoChatMemoryStore

MAX_DECISIONS = 100
"""How many decisions on calls one request has at most."""

MAX_STEPS = 256
"""How many messages are searched backwards for the question of an answer that is to be regenerated."""


_T = TypeVar("_T")

_NULL = msgspec.Raw(b"null")


def _no_file(url: str) -> None:
    """Return None: *url* is not the address of a stored file."""


class Question(NamedTuple):
    """A question for a turn; without a *message*, it is stored already and only has to be answered."""

    message: UserMessage | None
    after: int | None = None
    """The message to continue from, if it is not the newest."""
    client_message_id: str | None = None


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
            message = _as_stored(message, stored)
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


def positioned(question: Question, memory: ChatMemory, *, is_known: bool) -> Question:
    """
    Return *question* with its position in the conversation of *memory*; *is_known* is whether its id is taken there.

    If a message with the same client id and the same content is stored, it is answered where it is, or asked once more
    at the end, see ``_stays``; with other content, the new message replaces it. Without an id, the question is answered
    again if it is the newest message and has no answer.

    Raises:
        MessageNotFoundError: The message was removed.

    """
    message, _, name = question
    if not is_known and name is not None and message_sequence(name) is None:  # as nearly every question, it is new
        return question
    conversation = conversation_of(memory)
    if conversation is None:
        return question
    if name is None:
        newest = conversation.history().order_by("sequence").last()
        if newest is None or newest.is_complete or not _is_same(newest, message) or not _stays(conversation, newest):
            return question
        return Question(None, newest.sequence)
    versions = versions_of(conversation, name)
    if not versions:
        _check_not_removed(conversation, memory, name)
        return question
    row = next((row for row in versions if _is_same(row, message)), None)
    if row is None:
        replaced = versions[0]
        known = unedited(replaced.client_message_id or name)
        # Ids are unique, and the first version keeps its own, even if it was taken out of the history.
        return Question(message, conversation.parent_of(replaced.sequence), f"{known}{EDIT}{secrets.token_hex(4)}")
    if _stays(conversation, row, versions):
        return Question(None, row.sequence)
    again = id_again(row)
    _check_not_removed(conversation, memory, again)
    return Question(message, None, again)


def taken_ids(memory: ChatMemory, *client_message_ids: str | None) -> set[str]:
    """Return those of *client_message_ids* that messages in the conversation of *memory* have."""
    store, names = memory.store, [each for each in client_message_ids if each is not None]
    if not names or not isinstance(store, DjangoChatMemoryStore):
        return set()
    named = store.named(memory.id).filter(messages__client_message_id__in=names)
    return {name for name in named.values_list("messages__client_message_id", flat=True) if name is not None}


def question_again(conversation: Conversation, name: str | None) -> Question | None:
    """
    Return the question to answer again, or None if there is none.

    It is the message *name* or, if that is an answer's id, the question before the answer; without an id, it is the
    newest question. One that has no answer is returned as it was asked: where it is answered is decided when the answer
    begins, since another one may be in progress now.
    """
    row = _newest_question(conversation) if name is None else _message_of(conversation, name)
    for _ in range(MAX_STEPS):
        if row is None or row.type == MessageType.USER:
            break
        parent = conversation.parent_of(row.sequence)
        row = conversation.history(all_branches=True).filter(sequence=parent or 0).first()
    if row is None or row.type != MessageType.USER:
        return None
    [message] = whole([row.chat_message], [row.sequence], ConversationKey.of(conversation))
    if isinstance(message, UserMessage) and not _has_answer(conversation, row):
        return Question(message, None, ui_id(row))
    return Question(None, row.sequence)


def _is_same(row: Message, message: UserMessage | None) -> bool:
    """Return whether *row* holds *message*, whose files may be in a storage there."""
    return message is not None and row.chat_message == as_kept(message)


def conversation_of(memory: ChatMemory) -> Conversation | None:
    """Return the conversation of *memory*; None if it is not in the database, or not the owner's."""
    store = memory.store
    return store.named(memory.id).first() if isinstance(store, DjangoChatMemoryStore) else None


def _message_of(conversation: Conversation, name: str) -> Message | None:
    """Return the row of the message with the client's id *name*; of several versions, the one on the path."""
    versions = versions_of(conversation, name)
    if versions:
        return versions[0]
    sequence = message_sequence(name)
    return conversation.history(all_branches=True).filter(sequence=sequence or 0).first()


def _newest_question(conversation: Conversation) -> Message | None:
    return conversation.history().filter(type=MessageType.USER).order_by("sequence").last()


MISSING = "missing required field"
"""What msgspec's errors have where a body has none of the AI SDK's shapes."""

EXAMPLE = (
    'A question is {"id": "<UUID>", "messages": [{"id": "1", "role": "user", '
    '"parts": [{"type": "text", "text": "\N{HORIZONTAL ELLIPSIS}"}]}]}.'
)


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
    return msgspec.structs.replace(message, contents=tuple(contents)) if stored else message


def _check_size(size: int) -> None:
    most = conf.max_message_bytes()
    if size > most:
        raise ValueError(f"$: the message has {size} bytes; at most {most} are allowed. Send smaller files.")


def _check_not_removed(conversation: Conversation, memory: ChatMemory, client_message_id: str) -> None:
    """Raise ``MessageNotFoundError`` if the message with that id, which is not in the history, was removed."""
    removed = conversation.messages.filter(in_history=False)
    row = removed.filter(client_message_id=client_message_id).first()
    if row is None and (sequence := message_sequence(client_message_id)):
        row = removed.filter(sequence=sequence, client_message_id=None, type=MessageType.USER).first()
    if row is not None:
        raise MessageNotFoundError(memory.id, row.sequence)


def _stays(conversation: Conversation, row: Message, versions: Sequence[Message] = ()) -> bool:
    """
    Return whether the question *row*, asked again, is answered where it is; if not, it is asked once more at the end.

    It stays if it has an answer, which another one replaces; if it is the newest message; and on another branch if one
    of its *versions* is on the path, which it is to replace. From anywhere else, it would take the answers to later
    questions off the path. It never stays if the memory was cleared just after it: then no memory there has it.
    """
    if row.cleared_before is not None:
        return False
    if not row.on_path:
        return any(version.on_path for version in versions) or _has_answer(conversation, row)
    is_newest = _following(conversation, row) is None and row.sequence > conversation.forgotten_through
    return is_newest or _has_answer(conversation, row)


def _has_answer(conversation: Conversation, row: Message) -> bool:
    """Return whether an answer follows the question *row*: on the path or, if it is not on it, on any branch."""
    if not row.is_complete:
        return False
    if row.on_path:
        following = _following(conversation, row)
        return following is not None and following.type != MessageType.USER
    parents = [row.sequence]
    while parents:
        history = conversation.history(all_branches=True)
        found = {child for parent in parents for child in children_of(history, parent)}
        children = list(history.filter(sequence__in=found))
        if any(child.type not in {MessageType.SYSTEM, MessageType.USER} for child in children):
            return True
        parents = [child.sequence for child in children if child.type == MessageType.SYSTEM]
    return False


def _following(conversation: Conversation, row: Message) -> Message | None:
    """Return the message that follows *row* on the path, system messages aside."""
    following = conversation.history().filter(sequence__gt=row.sequence).exclude(type=MessageType.SYSTEM)
    return following.order_by("sequence").first()
