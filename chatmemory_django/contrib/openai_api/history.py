"""The history that a client of chat completions sends: its questions, each with its answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import msgspec

from chatmemory_django.access import NotAllowedError
from chatmemory_django.chat.conf import chat_settings
from chatmemory_django.chat.http.posted import check_size, read_value
from chatmemory_django.chat.ui_messages import from_ui_message, ui_id
from chatmemory_django.chat.ui_messages.writing import answer_text
from chatmemory_django.codec import message_to_json
from chatmemory_django.core.limits import RAW_BYTES, is_storable
from chatmemory_django.formats.openai_files import AUDIO_TYPES
from chatmemory_django.messages import (
    AiMessage,
    ChatMessage,
    DetailLevel,
    MessageType,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation
from chatmemory_django.operations.one_by_one import as_kept

MAX_HISTORY = 2_000
"""How many messages a client sends at most with one request."""

Guarded: TypeAlias = Callable[[UserMessage], UserMessage | None]
"""Returns what guards leave of a question; None if they refuse it."""

INSTRUCTING = frozenset({"system", "developer"})


class SentTurn(NamedTuple):
    """A question as a client sends it, and what follows it up to the next one."""

    parts: list[dict[str, Any]]
    """Those of the question, as the AI SDK has them."""
    question: UserMessage
    answer: list[ChatMessage]

    @property
    def text(self) -> str:
        """The words of the answer, by which it is compared."""
        return _words(each.text or "" for each in self.answer if isinstance(each, AiMessage))

    @property
    def is_begun(self) -> bool:
        """Whether the answer ends with a text, with which the model is to go on."""
        last = self.answer[-1] if self.answer else None
        return isinstance(last, AiMessage) and bool(last.text) and not last.tool_execution_requests

    @property
    def outputs(self) -> dict[str, str]:
        """What the client has returned for the calls with which the answer ends, by their ids."""
        found: dict[str, str] = {}
        for message in reversed(self.answer):
            if not isinstance(message, ToolExecutionResultMessage):
                break
            found[str(message.id)] = message.text
        return found


class SentHistory(NamedTuple):
    """What a client sends: turns, of which the last one is to be answered, and its instructions."""

    turns: list[SentTurn]
    instructions: str


def read_history(messages: msgspec.Raw, check: Callable[[UserMessage], object]) -> SentHistory:
    """
    Return the *messages* of a body; *check* is called with each one of the user.

    Raises ``ValueError`` with the path of what is invalid.
    """
    found = read_value(messages, list[msgspec.Raw], "$.messages", RAW_BYTES)
    if len(found) > MAX_HISTORY:
        raise ValueError(f"$.messages: there are {len(found)}; at most {MAX_HISTORY} are allowed.")
    turns, instructions, last = list[SentTurn](), list[str](), ""
    for index, raw in enumerate(found):
        path = f"$.messages[{index}]"
        message: Any = read_value(raw, dict[str, Any], path)
        role = str(message.get("role"))
        if role in INSTRUCTING:
            instructions.append(text_of(message.get("content"), f"{path}.content"))
            continue
        last = role
        if role == "user":
            turns.append(question_of(message.get("content"), f"{path}.content", check))
        elif role not in {"assistant", "tool", "function"}:
            raise ValueError(f"{path}.role: it must be system, developer, user, assistant or tool.")
        elif turns:  # what comes before the first question is no answer
            turns[-1].answer.append(_answer(message, path) if role == "assistant" else _result(message, path))
    if last not in {"user", "tool"} and not (turns and turns[-1].is_begun):
        raise ValueError("$.messages: the last one must be of the user, a text to go on with, or a tool's result.")
    if not turns:
        raise ValueError("$.messages: there is no message of the user.")
    return SentHistory(merged(turns), "\n\n".join(filter(None, instructions)))


class Continuation(NamedTuple):
    """What of a history is new in a conversation, as the AI SDK's clients send it."""

    messages: list[dict[str, Any]]
    trigger: str | None = None
    message_id: str | None = None


def placed(
    history: SentHistory, conversation: Conversation | None, guarded: Guarded, name: str = "", *, is_retry: bool = False
) -> Continuation:
    """
    Return what of *history* is new in *conversation*: the question behind the turns that are equal by content, as they
    were sent or once they are *guarded*.

    A single question, with no history, comes to the end, unless there is no other turn. One that the conversation has
    at this place, too, is to have another answer, unless it is the same one: this *is_retry*, or it has the client's id
    *name* there.

    Raises:
        NotAllowedError: 409: The conversation does not begin with what is in front of the question. 400: There is no
            question at the end.

    """
    *earlier, last = history.turns
    asked = {"id": name, "role": "user", "parts": last.parts}
    if last.answer:
        raise NotAllowedError(400, "$.messages: the last one must not be the assistant's, in a stored conversation.")
    if not earlier:
        turns = [] if conversation is None or name or is_retry else list(islice(_stored_turns(conversation), 2))
        if len(turns) == 1 and turns[0].text and turns[0].has_question(last.question, guarded):
            return Continuation([], "regenerate-message", turns[0].question_id)
        return Continuation([asked])
    before, following = _place_of(history, conversation, guarded)
    there = next((each for each in reversed(following) if each.has_question(last.question, guarded)), None)
    if there is not None and (is_retry or there.question_id == name):
        return Continuation([{**asked, "id": there.question_id}])
    if there is not None and there.text:
        return Continuation([], "regenerate-message", there.question_id)
    if before is not None and not (before.answer_id or following):  # its answer is in progress, or has failed
        return Continuation([asked])
    shown = [] if before is None else named_turn(before.question_id, before.answer_id)
    return Continuation([*shown, asked], "submit-message")


def named_turn(question: str, answer: str | None) -> list[dict[str, Any]]:
    """Return a question and its answer, if there is one, with the ids by which the AI SDK's clients name them."""
    return [{"id": name, "role": role} for role, name in (("user", question), ("assistant", answer)) if name]


def check_begins_with(history: SentHistory, conversation: Conversation | None, guarded: Guarded) -> None:
    """Raise ``NotAllowedError``, 409, unless the turns of *history* and its last question are in *conversation*."""
    _, following = _place_of(history, conversation, guarded)
    if not any(each.has_question(history.turns[-1].question, guarded) for each in following):
        raise _another_history()


def _place_of(
    history: SentHistory, conversation: Conversation | None, guarded: Guarded
) -> tuple[_StoredTurn | None, list[_StoredTurn]]:
    """
    Return the last turn of *conversation* that *history* has, too, and what follows it there, up to an answer.

    All turns in front of the last question must be equal by content, or it is 409. Questions without an answer may be
    missing: clients drop those that have failed.
    """
    stored = iter(()) if conversation is None else islice(_stored_turns(conversation), 2 * MAX_HISTORY)
    before: _StoredTurn | None = None
    for turn in history.turns[:-1]:
        before = next((each for each in stored if each.text or each.is_same(turn, guarded)), None)
        if before is None or not before.is_same(turn, guarded):
            raise _another_history()
    following = list[_StoredTurn]()
    for each in stored:
        following.append(each)
        if each.text:
            break
    return before, following


def _another_history() -> NotAllowedError:
    return NotAllowedError(409, "The conversation does not begin with these messages. Begin a new one.")


class _StoredTurn(NamedTuple):
    """A question of a conversation, and its answer."""

    question_id: str
    question: ChatMessage
    answer_id: str
    text: str

    def has_question(self, sent: UserMessage, guarded: Guarded) -> bool:
        """Return whether the question is the one that was *sent*, or what its guards have made of that."""
        return self._has(sent) or ((left := guarded(sent)) is not None and self._has(left))

    def is_same(self, sent: SentTurn, guarded: Guarded) -> bool:
        """
        Return whether question and answer are those that were *sent*.

        The client may have the beginning of the answer, from which it has left, or any if that has failed here.
        """
        return (not self.text or self.text.startswith(sent.text)) and self.has_question(sent.question, guarded)

    def _has(self, sent: UserMessage) -> bool:
        stored, kept = self.question, as_kept(sent)
        return isinstance(stored, UserMessage) and isinstance(kept, UserMessage) and stored.contents == kept.contents


def _stored_turns(conversation: Conversation) -> Iterator[_StoredTurn]:
    """Yield the turns of the path of *conversation*."""
    turn: _StoredTurn | None = None
    texts = list[str]()
    kinds = (MessageType.USER, MessageType.AI)
    for row in conversation.history().filter(type__in=kinds).order_by("sequence").iterator():
        message = row.chat_message
        if isinstance(message, AiMessage):
            texts.append(answer_text(message))
            turn = turn and turn._replace(answer_id=turn.answer_id or ui_id(row), text=_words(texts))
        else:
            if turn is not None:
                yield turn
            turn, texts = _StoredTurn(ui_id(row), message, "", ""), []
    if turn is not None:
        yield turn


def _words(texts: Iterable[str]) -> str:
    return " ".join(" ".join(texts).split())


def merged(turns: list[SentTurn]) -> list[SentTurn]:
    """Return *turns*, of which those without an answer are one question with the next one."""
    merged = list[SentTurn]()
    for turn in turns:
        if merged and not merged[-1].answer:
            parts = [*merged[-1].parts, *turn.parts]
            contents = [*merged[-1].question.contents, *turn.question.contents]
            merged[-1] = SentTurn(parts, UserMessage(contents), turn.answer)
        else:
            merged.append(turn)
    return merged


def question_of(content: Any, path: str, check: Callable[[UserMessage], object]) -> SentTurn:
    """Return the question with this *content*, a text or parts of either API; ``ValueError`` if it is invalid."""
    settings = chat_settings()
    parts = ui_parts(content, path)
    try:
        message = from_ui_message(
            {"role": "user", "parts": parts},
            max_text_length=settings.MAX_TEXT_LENGTH,
            max_parts=settings.MAX_PARTS,
            image_detail=DetailLevel[settings.IMAGE_DETAIL],
        )
        check_size(len(message_to_json(message).encode()))
    except ValueError as exc:
        raise ValueError(path + str(exc).removeprefix("$").removeprefix(".parts")) from None
    check(message)
    return SentTurn(parts, message, [])


def ui_parts(content: Any, path: str) -> list[dict[str, Any]]:
    """Return the parts of the AI SDK for the *content* of a user's message, in either API of OpenAI's."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise ValueError(f"{path}: it must be a string, or a list of parts.")  # noqa: TRY004  # of the body
    return [_part(part, f"{path}[{index}]") for index, part in enumerate(content)]


def _part(part: Any, path: str) -> dict[str, Any]:
    match part:
        case {"type": "text" | "input_text", "text": str() as text}:
            return {"type": "text", "text": text}
        case {"type": "image_url", "image_url": {"url": str(url)}} | {"type": "input_image", "image_url": str(url)}:
            return _file(url, "image")
        case {"type": "input_audio", "input_audio": {"data": str() as data, "format": str() as form}} if (
            form in AUDIO_TYPES
        ):
            return _file(f"data:{AUDIO_TYPES[form]};base64,{data}", "audio")
        case {"type": "file", "file": {"file_data": str() as url}} | {"type": "input_file", "file_data": str() as url}:
            return _file(url, "application/pdf")
        case {"type": "input_file", "file_url": str() as url}:
            return _file(url, "application/pdf")
    raise ValueError(f"{path}: it must be a text, an image, a sound or a file, with its content or its address.")


def _file(url: str, kind: str) -> dict[str, Any]:
    """Return the part of a file at *url*, which may be a data URL; *kind* is its media type where that has none."""
    head = url[:200].partition(";")[0]
    return {"type": "file", "url": url, "mediaType": head.removeprefix("data:") if head.startswith("data:") else kind}


def _answer(message: Mapping[str, Any], path: str) -> AiMessage:
    content, calls = message.get("content"), message.get("tool_calls") or ()
    text = text_of(content, f"{path}.content") if content is not None else text_of(message.get("refusal") or "", path)
    requests = []
    for index, call in enumerate(calls if isinstance(calls, Sequence) else ()):
        match call:
            case {"id": str() as id, "function": {"name": str() as name, "arguments": str() as arguments}}:
                check_text(id + name + arguments, f"{path}.tool_calls[{index}]")
                requests.append(ToolExecutionRequest(id, name, arguments))
            case _:
                raise ValueError(f"{path}.tool_calls[{index}]: it must have an id, and a function with its arguments.")
    return AiMessage(text or None, tool_execution_requests=requests)


def _result(message: Mapping[str, Any], path: str) -> ToolExecutionResultMessage:
    call = message.get("tool_call_id")
    if not isinstance(call, str):
        raise ValueError(f"{path}.tool_call_id: it must be the id of a call.")  # noqa: TRY004  # of the body
    check_text(call, f"{path}.tool_call_id")
    return ToolExecutionResultMessage(call, None, text_of(message.get("content"), f"{path}.content"))


def text_of(content: Any, path: str) -> str:
    """Return the text of *content*, a text or parts; ``ValueError`` if it is too long, or cannot be stored."""
    if isinstance(content, list):
        texts = [part.get("text", part.get("refusal")) for part in content if isinstance(part, Mapping)]
        content = "\n".join(text for text in texts if isinstance(text, str))
    if not isinstance(content, str):
        raise ValueError(f"{path}: it must be a string, or a list of text parts.")  # noqa: TRY004  # of the body
    check_text(content, path)
    return content


def check_text(text: str, path: str) -> None:
    """Raise ``ValueError`` if *text* is too long, or cannot be stored."""
    if len(text) > (most := chat_settings().MAX_TEXT_LENGTH):
        raise ValueError(f"{path}: it has {len(text)} characters; at most {most} are allowed.")
    if not is_storable(text):
        raise ValueError(f"{path}: it has a NUL character or a lone surrogate.")
