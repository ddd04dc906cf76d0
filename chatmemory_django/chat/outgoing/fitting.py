"""
How messages are made fit for a vendor.

Only what is sent is changed. It is the same for the same messages, in every process, and what it is for one depends
neither on those behind it nor on those before it, so that prompt caches hold as a conversation goes on, and when others
leave the window. The exceptions are system messages that are joined, images beyond the most that a vendor takes, and
what is there twice, of which the first stays as it is. Everything that is inserted is constant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from hashlib import sha256
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from chatmemory_django.chat.outgoing.rules import Calls, Rules, System, Words
from chatmemory_django.core.media import Source, source_of
from chatmemory_django.core.shortening import FILES
from chatmemory_django.core.shown import VENDOR_ATTRIBUTE
from chatmemory_django.core.tool_calls import UNKNOWN, in_order_of_calls
from chatmemory_django.formats.files import PDF, base64_of, media_type_of
from chatmemory_django.messages import (
    AiMessage,
    AudioContent,
    ChatMessage,
    Content,
    CustomMessage,
    ImageContent,
    PdfFileContent,
    SystemMessage,
    TextContent,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
    VideoContent,
)

BEGINNING = UserMessage("[The conversation so far:]")
"""What stands before a first answer, whether others were before it or not."""

GO_ON = UserMessage("Go on.")
"""What stands behind a last answer, and between two that cannot be merged."""

NO_ANSWER = AiMessage("[The answer ended here.]")
"""What stands between the result of a tool and the user's next message."""

NO_TEXT = TextContent("[no text]")
"""What a message has in place of blank texts alone."""

BESIDE_PDF = TextContent("[a PDF file]")
"""What stands beside a PDF file where there is no text."""

REASONING = "[The reasoning is not known.]"
"""What is sent as the thinking of an answer that another vendor has given."""

NAMELESS = "tool"
"""The name of a tool that has none."""

MAX_NAME = 64
"""How many characters the name of a speaker, or of a file in its note, has at most."""

ID_LENGTH = 9
"""The length of an id that is made: Mistral's, which all others accept, too."""

IMAGES_AT_A_TIME = 20
"""How many images become notes together where there are too many, so that not each new one changes what is sent."""

OWN_TOOLS = frozenset({"builtin-tool-call", "builtin-tool-return"})
"""What pydantic-ai calls the calls of a vendor's own tools, such as a search, and their results."""

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_KINDS = {ImageContent: "image", AudioContent: "audio", VideoContent: "video", PdfFileContent: "pdf"}
_FIELDS = {ImageContent: "image", AudioContent: "audio", VideoContent: "video", PdfFileContent: "pdf_file"}
_OBJECT = msgspec.json.Decoder(dict[str, object])

_T = TypeVar("_T")


class Difference(StrEnum):
    """What differs in what is sent for a message."""

    MOVED = "moved"
    """It is elsewhere: a system message in front, a result directly behind its call."""
    MERGED = "merged"
    """It is part of the message before it."""
    LEFT_OUT = "left_out"
    """It is not sent: it is blank, or a result without a call."""
    INSERTED = "inserted"
    """A constant message stands before it or, if it is a last answer, behind it; or a result that its call lacks."""
    CALL_ID = "call_id"
    """A call, and its result, have another id."""
    NAME = "name"
    """A tool or a speaker has another name."""
    ARGUMENTS = "arguments"
    """The arguments of a call are in a JSON object, or are an empty one."""
    BLANK = "blank"
    """A blank text is left out or replaced."""
    FILE = "file"
    """A note stands for a file."""
    TEXT = "text"
    """A call, or a result, is a text."""
    SPLIT = "split"
    """The calls of an answer are sent one at a time."""
    THINKING = "thinking"
    """What the vendor sent with the answer, such as thinking, is sent with an earlier one that is the same."""


class Changed(NamedTuple):
    """A message, by its sequence, and one *change*."""

    sequence: int
    change: Difference


class Outgoing(NamedTuple):
    """What is sent to a vendor."""

    messages: list[ChatMessage]
    sequences: list[int]
    """Of each message; of the next one, if it is inserted."""
    changes: Sequence[Changed] = ()
    """What differs from the messages as they are in the memory, each once."""
    tools: Sequence[str] = ()
    """The tools that the messages name, if the vendor wants them to be specified even if the assistant has none."""
    unsupported: str | None = None
    """What the vendor does not take of the question."""


def for_vendor(messages: Sequence[tuple[int, ChatMessage]], rules: Rules, *, begun: int | None = None) -> Outgoing:
    """
    Return *messages*, which come with their sequences, as *rules* allow them; those that they allow stay as they are.

    A file that the model does not take becomes a note. If it is a user's, in a message from the sequence *begun* on, it
    is what is ``unsupported``.
    """
    if _are_turns(messages, rules):
        return Outgoing([message for _, message in messages], [sequence for sequence, _ in messages])
    return _Fitting(rules, begun).of(messages)


def reasoning_of(message: AiMessage, rules: Rules) -> str:
    """Return the ``reasoning_content`` of *message*: its thinking, unless that is known to be of another vendor."""
    kept = message.attributes.get(VENDOR_ATTRIBUTE)
    vendor = kept.get("provider_name", "") if isinstance(kept, Mapping) else rules.vendor
    return message.thinking if message.thinking and vendor == rules.vendor else REASONING


def named(message: AiMessage, rules: Rules) -> AiMessage:
    """Return *message* with the name of the vendor, if ``reasoning_of`` will ask for it."""
    if not (message.thinking and message.tool_execution_requests):
        return message
    return replace(message, attributes={**message.attributes, VENDOR_ATTRIBUTE: {"provider_name": rules.vendor}})


def as_object(arguments: str | None) -> str:
    """Return *arguments* as a JSON object: as they are or, if they are something else, with their text in one."""
    if not arguments or arguments.isspace():
        return "{}"
    try:
        _OBJECT.decode(arguments)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return msgspec.json.encode({"text": arguments.encode("utf-8", "replace").decode()}).decode()
    return arguments


def _are_turns(messages: Sequence[tuple[int, ChatMessage]], rules: Rules) -> bool:
    """Return whether *messages* are texts of a user and answers in turn, behind one system message: all accept that."""
    is_any_turn, is_users_turn, may_be_blank = not rules.begins_with_user, True, rules.words is not Words.VISIBLE
    for _, message in messages:  # whose exact types are looked at, since that is quicker
        if type(message) is AiMessage and (is_any_turn or not is_users_turn):
            if message.tool_execution_requests or (message.attributes and not rules.repeats_responses):
                return False
            text, is_users_turn = message.text, True
        elif type(message) is UserMessage and (is_any_turn or is_users_turn):
            if message.name is not None or len(message.contents) != 1:
                return False
            content = message.contents[0]
            text, is_users_turn = content.text if type(content) is TextContent else None, False
        elif message is messages[0][1] and type(message) is SystemMessage and not message.text.isspace():
            continue
        else:
            return False
        if not text or not (may_be_blank or not text.isspace()):
            return False
        is_any_turn = False
    return not is_users_turn


class _Fitting:
    """One pass over messages."""

    def __init__(self, rules: Rules, begun: int | None) -> None:
        self._rules = rules
        self._begun = begun
        self._changes: dict[Changed, None] = {}
        self._front: list[tuple[int, SystemMessage]] = []
        self._sent: list[tuple[int, ChatMessage]] = []
        self._last: int | None = None
        """Where the last of those is that is neither a system message nor a custom one."""
        self._calls: Iterator[ToolExecutionRequest] = iter(())
        self._ids: Mapping[tuple[int, int], str] = {}
        self._tools: dict[str, None] = {}
        self._images_left_out = 0
        self._repeated: frozenset[int] = frozenset()
        self._unsupported: str | None = None

    def of(self, messages: Sequence[tuple[int, ChatMessage]]) -> Outgoing:
        rules = self._rules
        messages = self._paired(messages)
        self._ids = self._made_ids(messages)
        self._images_left_out = self._too_many_images(messages)
        self._repeated = frozenset(() if rules.repeats_responses else _repeated(messages))
        for key, message in messages:
            match message:
                case SystemMessage():
                    self._add_system(key, message)
                case UserMessage():
                    self._add(key, self._user(key, message))
                case AiMessage():
                    self._add_answer(key, message)
                case ToolExecutionResultMessage():
                    self._add_result(key, self._result(key, message, next(self._calls)))
                case CustomMessage():  # the model's class knows it, or leaves it out
                    self._sent.append((key, message))
        newest, last = messages[-1][0] if messages else 0, self._last_message
        is_empty = all(isinstance(each, CustomMessage) for _, each in [*self._front, *self._sent])
        if last is None and (rules.begins_with_user or is_empty):
            self._insert(newest, BEGINNING)
        if isinstance(last, AiMessage) and not rules.ends_with_answer:
            self._insert(newest, GO_ON)
        tools = tuple(self._tools) if rules.specifies_tools else ()
        sent = [*self._front, *(self._one_at_a_time() if rules.calls is Calls.ONE else self._sent)]
        changes = tuple(self._changes)
        return Outgoing([each for _, each in sent], [key for key, _ in sent], changes, tools, self._unsupported)

    def _note(self, key: int, change: Difference) -> None:
        self._changes[Changed(key, change)] = None

    def _noted(self, key: int, change: Difference, fitted: _T, given: object) -> _T:
        """Return *fitted*, and note the *change* if it is another value than *given*."""
        if fitted != given:
            self._note(key, change)
        return fitted

    # The order of messages

    def _paired(self, messages: Sequence[tuple[int, ChatMessage]]) -> Sequence[tuple[int, ChatMessage]]:
        """Return *messages* with one result behind each call, and without other results."""
        if _are_paired(messages):
            return messages
        paired: list[tuple[int, ChatMessage]] = []
        before, found = -1, set()
        for index, position in in_order_of_calls([message for _, message in messages]):
            key, message = messages[index]
            if position is not None and isinstance(message, AiMessage):
                call = message.tool_execution_requests[position]
                paired.append((key, ToolExecutionResultMessage.from_request(call, UNKNOWN, is_error=True)))
                self._note(key, Difference.INSERTED)
                continue
            if isinstance(message, ToolExecutionResultMessage) and index != before + 1:
                self._note(key, Difference.MOVED)
            paired.append((key, message))
            before = index
            found.add(index)
        for index, (key, _) in enumerate(messages):
            if index not in found:
                self._note(key, Difference.LEFT_OUT)
        return paired

    def _add_system(self, key: int, message: SystemMessage) -> None:
        if message.text.isspace() and self._rules.words is Words.VISIBLE:
            self._note(key, Difference.LEFT_OUT)
        elif self._rules.system is System.ANYWHERE:
            self._sent.append((key, message))
        else:
            if self._sent:
                self._note(key, Difference.MOVED)
            if self._front and self._rules.system is System.ONE:
                first, merged = self._front[0]
                self._front[0] = first, SystemMessage(f"{merged.text}\n\n{message.text}")
                self._note(key, Difference.MERGED)
            else:
                self._front.append((key, message))

    def _add(self, key: int, message: ChatMessage) -> None:
        """Add *message* where its role may be."""
        rules, last = self._rules, self._last_message
        if last is None:
            if rules.begins_with_user and not isinstance(message, UserMessage):
                self._insert(key, BEGINNING)
        elif isinstance(message, UserMessage):
            if rules.alternates and isinstance(last, UserMessage):
                self._merge(key, _joined(last, message))
                return
            if isinstance(last, ToolExecutionResultMessage) and not rules.user_after_result:
                self._insert(key, NO_ANSWER)
        elif rules.alternates and isinstance(message, AiMessage) and isinstance(last, AiMessage):
            if not (rules.returns_responses and _has_parts(message)):
                text = "\n\n".join(each.text for each in (last, message) if each.text) or None
                self._merge(key, replace(message, text=text))
                return
            self._insert(key, GO_ON)  # what its vendor sent with it belongs to it alone
        self._append(key, message)

    @property
    def _last_message(self) -> ChatMessage | None:
        return None if self._last is None else self._sent[self._last][1]

    def _append(self, key: int, message: ChatMessage) -> None:
        self._last = len(self._sent)
        self._sent.append((key, message))

    def _insert(self, key: int, message: ChatMessage) -> None:
        self._note(key, Difference.INSERTED)
        self._append(key, message)

    def _merge(self, key: int, message: ChatMessage) -> None:
        self._note(key, Difference.MERGED)
        if self._last is not None:
            first, _ = self._sent.pop(self._last)
            self._append(first, message)

    # Answers and results

    def _add_answer(self, key: int, message: AiMessage) -> None:
        if key in self._repeated:
            self._note(key, Difference.THINKING)
            rest = {name: value for name, value in message.attributes.items() if name != VENDOR_ATTRIBUTE}
            message = replace(message, attributes=rest)
        calls = message.tool_execution_requests
        text = message.text
        if text is not None and (not text or text.isspace()):  # an empty one without calls is nothing to any vendor
            text = None if self._rules.words is Words.VISIBLE or not (text or calls) else text
        if calls:
            fitted = tuple(self._call(key, position, call) for position, call in enumerate(calls))
            calls = calls if all(map(_is, fitted, calls)) else fitted
            self._calls = iter(calls)
        elif text is None and not (
            self._rules.returns_responses and _has_own_tools(message, self._rules)
        ):  # no thought alone
            self._note(key, Difference.LEFT_OUT)
            return
        if text is not message.text or calls is not message.tool_execution_requests:
            self._noted(key, Difference.BLANK, text, message.text)
            message = replace(message, text=text, tool_execution_requests=calls)
        if calls and self._rules.calls is Calls.TEXT:
            self._note(key, Difference.TEXT)
            called = [f"[Call of the tool {call.name}: {call.arguments}]" for call in calls]
            message = replace(message, text="\n\n".join(filter(None, [text, *called])), tool_execution_requests=())
        self._add(key, message)

    def _call(self, key: int, position: int, call: ToolExecutionRequest) -> ToolExecutionRequest:
        rules = self._rules
        made = self._ids.get((key, position), call.id)
        name = _named(call.name or NAMELESS, rules.tool_name)
        arguments = as_object(call.arguments) if rules.reads_arguments or call.arguments is None else call.arguments
        self._tools[name] = None
        if (made, name, arguments) == (call.id, call.name, call.arguments):
            return call
        self._noted(key, Difference.CALL_ID, made, call.id)
        self._noted(key, Difference.NAME, name, call.name)
        self._noted(key, Difference.ARGUMENTS, arguments, call.arguments)
        return ToolExecutionRequest(made, name, arguments)

    def _made_ids(self, messages: Sequence[tuple[int, ChatMessage]]) -> Mapping[tuple[int, int], str]:
        """
        Return an id for each call whose own does not fit, or is that of an earlier call, too.

        Of calls with the same id, the first one keeps it, so that it does not change when another comes.
        """
        taken: set[str | None] = {None}
        made: dict[tuple[int, int], str] = {}
        for key, message in messages:
            if isinstance(message, AiMessage):
                for position, call in enumerate(message.tool_execution_requests):
                    if call.id in taken or not self._rules.call_id.fullmatch(call.id or ""):
                        made[key, position] = _hashed(f"{key} {position} {call.id or ''}")
                    taken.add(call.id)
        return made

    def _one_at_a_time(self) -> Iterator[tuple[int, ChatMessage]]:
        """Yield what is sent; of the calls of an answer, each but the first stands alone in front of its result."""
        waiting: list[tuple[int, AiMessage]] = []
        for key, message in self._sent:
            if isinstance(message, AiMessage) and len(message.tool_execution_requests) > 1:
                self._note(key, Difference.SPLIT)
                first, *others = message.tool_execution_requests
                waiting = [(key, replace(message, tool_execution_requests=(first,)))]
                waiting += [(key, AiMessage(None, None, [call])) for call in others]
            elif isinstance(message, ToolExecutionResultMessage) and waiting:
                yield waiting.pop(0)
                yield key, message
            else:
                yield key, message

    def _add_result(self, key: int, message: ToolExecutionResultMessage) -> None:
        if self._rules.calls is not Calls.TEXT:
            self._add(key, message)
            return
        self._note(key, Difference.TEXT)
        contents = [TextContent(f"[Result of the tool {message.tool_name}:]"), *message.contents]
        texts = [each.text for each in contents if isinstance(each, TextContent)]
        self._add(key, UserMessage("\n".join(texts) if len(texts) == len(contents) else contents))

    def _result(
        self, key: int, message: ToolExecutionResultMessage, call: ToolExecutionRequest
    ) -> ToolExecutionResultMessage:
        contents = self._contents(key, message.contents, is_result=True)
        if contents is message.contents and (message.id, message.tool_name) == (call.id, call.name):
            return message
        self._noted(key, Difference.CALL_ID, call.id, message.id)
        self._noted(key, Difference.NAME, call.name, message.tool_name)
        return replace(message, id=call.id, tool_name=call.name, contents=contents)

    # What people and tools say

    def _user(self, key: int, message: UserMessage) -> UserMessage:
        contents = self._contents(key, message.contents, is_asked=self._begun is not None and key >= self._begun)
        name = message.name
        if name is not None:
            kept = "".join("_" if each.isspace() or each in "<|\\/>" else each for each in name[:MAX_NAME]) or None
            name = self._noted(key, Difference.NAME, kept, name)
        if contents is message.contents and name == message.name:
            return message
        return replace(message, contents=contents, name=name)

    def _contents(
        self, key: int, contents: tuple[Content | None, ...], *, is_asked: bool = False, is_result: bool = False
    ) -> tuple[Content | None, ...]:
        rules = self._rules
        fitted: list[Content] = []
        for content in contents:
            if isinstance(content, TextContent):
                if rules.words is not Words.VISIBLE or (content.text and not content.text.isspace()):
                    fitted.append(content)
                else:
                    self._note(key, Difference.BLANK)
            elif content is not None:
                fitted.append(self._file(key, content, is_asked=is_asked, is_result=is_result))
        if not fitted:
            fitted.append(NO_TEXT)
            self._note(key, Difference.BLANK)
        is_pdf_alone = all(not isinstance(each, TextContent) for each in fitted)
        if rules.text_beside_pdf and is_pdf_alone and any(isinstance(each, PdfFileContent) for each in fitted):
            fitted.append(BESIDE_PDF)
            self._note(key, Difference.INSERTED)
        return contents if len(fitted) == len(contents) and all(map(_is, fitted, contents)) else tuple(fitted)

    # Files

    def _file(self, key: int, content: Content, *, is_asked: bool, is_result: bool) -> Content:
        """Return *content*, a file, with its media type, or a note if the model does not take it."""
        source = source_of(content)
        if source is not None and self._takes(content, source, is_result=is_result):
            if source.mime_type or not (data := base64_of(source)):
                return content
            typed = replace(source, mime_type=media_type_of(source, data))
            return replace(content, **{_FIELDS[type(content)]: typed})
        self._note(key, Difference.FILE)
        if is_asked and self._unsupported is None:
            self._unsupported = _described(content)
        return TextContent(f"[{_described(content)} left out]")

    def _takes(self, content: Content, source: Source, *, is_result: bool) -> bool:
        rules, kind = self._rules, _KINDS[type(content)]
        if kind == "image" and self._images_left_out:
            self._images_left_out -= 1
            return False
        taken = rules.files & rules.result_files if is_result else rules.files
        if kind not in taken or (kind == "pdf" and (source.mime_type or PDF) != PDF):
            return False
        data, stored = base64_of(source), source.file  # stored, it is only explained: what is sent is whole
        if data is None and stored is None:
            return bool(source.url) and kind in rules.linked
        types = {"image": rules.image_types, "audio": rules.audio_types}.get(kind)
        detected = "" if stored is None else stored.type
        return data != "" and (types is None or media_type_of(source, data or "", detected) in types)

    def _too_many_images(self, messages: Sequence[tuple[int, ChatMessage]]) -> int:
        """Return how many of the first images are left out."""
        most = self._rules.max_images
        if most is None:
            return 0
        images = 0
        for _, message in messages:
            if isinstance(message, UserMessage | ToolExecutionResultMessage):
                for content in message.contents:
                    images += content.__class__ is ImageContent
        over = max(images - most, 0)
        return -(-over // IMAGES_AT_A_TIME) * IMAGES_AT_A_TIME


def _are_paired(messages: Sequence[tuple[int, ChatMessage]]) -> bool:
    """Return whether each call has its result directly behind it, in order, and each result its call."""
    calls: list[ToolExecutionRequest] = []
    for _, message in messages:
        if isinstance(message, ToolExecutionResultMessage):
            if not calls:
                return False
            call = calls.pop(0)
            if message.id != call.id or (call.id is None and message.tool_name != call.name):
                return False
        elif calls:
            return False
        elif isinstance(message, AiMessage):
            calls = list(message.tool_execution_requests)
    return not calls


def _has_parts(message: AiMessage) -> bool:
    """Return whether *message* has what its vendor sent with it: more than the vendor's name."""
    kept = message.attributes.get(VENDOR_ATTRIBUTE)
    return kept is not None and not (isinstance(kept, Mapping) and kept.keys() == {"provider_name"})


def _has_own_tools(message: AiMessage, rules: Rules) -> bool:
    """Return whether *message* has calls of the vendor's own tools, such as a search, which no other vendor is sent."""
    kept = message.attributes.get(VENDOR_ATTRIBUTE)
    if not isinstance(kept, Mapping) or _brand(kept.get("provider_name")) != _brand(rules.vendor):
        return False
    parts = kept.get("parts", ())
    return any(isinstance(part, Mapping) and part.get("part_kind") in OWN_TOOLS for part in parts)


def _brand(vendor: object) -> str:
    """Return the name of *vendor* without that of its API."""
    return str(vendor).partition("-")[0]


def _repeated(messages: Sequence[tuple[int, ChatMessage]]) -> Iterator[int]:
    """Yield the sequences of answers with a response of their vendor that an earlier answer has, too."""
    earlier: set[object] = set()
    for key, message in messages:
        response = message.attributes.get(VENDOR_ATTRIBUTE) if isinstance(message, AiMessage) else None
        if isinstance(response, Mapping) and (response_id := response.get("provider_response_id")):
            if response_id in earlier:
                yield key
            earlier.add(response_id)


def _joined(first: UserMessage, second: UserMessage) -> UserMessage:
    """Return one message; of two single texts, it is a single text, which not all templates tell from others."""
    name = first.name if first.name == second.name else None
    contents: str | Sequence[Content | None] = first.contents + second.contents
    if first.has_single_text and second.has_single_text:
        contents = f"{first.single_text}\n\n{second.single_text}"
    return UserMessage(contents, name, first.attributes)


def _named(name: str, pattern: re.Pattern[str]) -> str:
    """Return the *name* of a tool as *pattern* allows it."""
    if pattern.fullmatch(name):
        return name
    return "".join(each if each.isascii() and (each.isalnum() or each in "_-") else "_" for each in name[:MAX_NAME])


def _hashed(text: str) -> str:
    """Return an id that is the same for the same *text*, in every process."""
    number = int.from_bytes(sha256(text.encode("utf-8", "surrogatepass")).digest())
    digits = []
    for _ in range(ID_LENGTH):
        number, digit = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return "".join(digits)


def _described(content: Content) -> str:
    """Return what the file in *content* is: its kind, name, type and size, as far as they are known."""
    source = source_of(content)
    data = None if source is None else base64_of(source)
    known = []
    if source is not None and source.url is not None and not source.url.startswith("data:"):
        known.append(re.split("[?#]", source.url)[0].rpartition("/")[2][:MAX_NAME])
    if source is not None and (source.mime_type or data):
        known.append(media_type_of(source, data or ""))
    if data is not None:
        known.append(f"{len(data) * 3 // 4 - data[-2:].count('='):,} bytes")
    kind = FILES[type(content)]
    return f"{kind} ({', '.join(filter(None, known))})" if any(known) else kind


def _is(first: object, second: object) -> bool:
    return first is second
