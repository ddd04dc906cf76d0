"""
Messages and their contents: five kinds of each, all immutable values.

Two messages are equal if their types and fields are. A message is hashable if its fields are. Every value is validated
when it is built, by Python code or by the codec. ``TypeError`` names a field of the wrong type, ``ValueError`` a field
with an invalid value; neither repeats the text of a message. The ``repr`` of a message does include its text: keep
messages out of logs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeAlias, TypeVar

import msgspec
from msgspec.structs import force_setattr

_M = TypeVar("_M")

MAX_ATTRIBUTE_DEPTH = 100
"""
The maximum depth of attributes. Jackson stops at 1,000, PostgreSQL at its stack depth; real data nests a few levels.
"""

MAX_WORD = 1_000
"""A string with more characters than this and no space among them is taken for an encoded file."""

CUT = "\x02"
"""What surrounds the SHA-256 and the size of a file that a store has taken out of a string."""

BLANK = "".join(map(chr, range(0x21)))
"""The characters that LangChain4j trims to find blank texts: U+0000 to U+0020, so a no-break space counts as text."""


class MessageType(StrEnum):
    """The types of messages, as they are named in JSON and in the database."""

    SYSTEM = "SYSTEM"
    USER = "USER"
    AI = "AI"
    TOOL_EXECUTION_RESULT = "TOOL_EXECUTION_RESULT"
    CUSTOM = "CUSTOM"


class DetailLevel(Enum):
    """How closely a model should look at an image."""

    LOW = "LOW"
    MEDIUM = "MEDIUM"
    HIGH = "HIGH"
    ULTRA_HIGH = "ULTRA_HIGH"
    AUTO = "AUTO"


class Attributes(dict[str, Any]):
    """
    The free-form fields of a message, a JSON object: stored with the message, but not sent to the LLM.

    It is immutable, shares nothing with the object it was made from, and is hashable if its values are.
    """

    __slots__ = ()

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError("The attributes of a message cannot be changed; build a new message instead.")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type[Attributes], tuple[dict[str, Any]]]:
        # By default, dicts are copied and unpickled through __setitem__.
        return Attributes, (dict(self),)


NO_ATTRIBUTES = Attributes()


class _Value(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """An immutable value. Its JSON has camelCase keys and omits fields that have their default."""


class FileReference(_Value, frozen=True):
    """What the row of a message keeps of a file that is in a storage, see ``CHATMEMORY["MEDIA_STORAGE"]``."""

    sha256: str
    """Of its content, in hexadecimal."""
    size: int
    """In bytes."""
    type: str = ""
    """As detected from its first bytes; empty if it is unknown."""
    width: int | None = None
    """Of an image, in pixels, ..."""
    height: int | None = None
    """... so that its tokens can be counted without it."""


class _Stored(_Value, frozen=True, kw_only=True):
    file: FileReference | None = None
    """Where the store keeps the content, in messages as they are listed. Those that models are sent are whole."""


class _Media(_Stored, frozen=True):
    """A file, given by its URL or by its content."""

    url: str | None = None
    base64_data: str | None = None
    mime_type: str | None = None

    def __post_init__(self) -> None:
        for name in ("url", "base64_data", "mime_type"):
            _check_type(self, name, str, optional=True)
        if self.file is not None:
            _check_type(self, "file", FileReference)


class Image(_Media, frozen=True):
    """An image. *revised_prompt* is the prompt as rewritten by the model that generated the image."""

    revised_prompt: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_type(self, "revised_prompt", str, optional=True)


class Audio(_Media, frozen=True):
    """An audio file. *binary_data* is its content as bytes instead of Base64."""

    binary_data: bytes | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_type(self, "binary_data", bytes, optional=True)


class Video(_Media, frozen=True):
    """A video file."""


class PdfFile(_Media, frozen=True):
    """A PDF document: its *mime_type* is "application/pdf" unless another one is given."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mime_type is None:
            force_setattr(self, "mime_type", "application/pdf")  # as in LangChain4j, which writes it, too


class TextContent(_Value, frozen=True, tag_field="type", tag="TEXT"):
    """A text, which may be empty."""

    text: str

    def __post_init__(self) -> None:
        if self.text.__class__ is not str:
            _check_type(self, "text", str)


class ImageContent(_Value, frozen=True, tag_field="type", tag="IMAGE"):
    """An image, and how closely the model should look at it."""

    image: Image
    # A factory, so that the level is written even if it is the default, as LangChain4j does.
    detail_level: DetailLevel = msgspec.field(default_factory=lambda: DetailLevel.LOW)

    def __post_init__(self) -> None:
        _check_type(self, "image", Image)
        _check_type(self, "detail_level", DetailLevel)


class AudioContent(_Value, frozen=True, tag_field="type", tag="AUDIO"):
    """An audio file; None is allowed, as in LangChain4j."""

    audio: Audio | None = None

    def __post_init__(self) -> None:
        _check_type(self, "audio", Audio, optional=True)


class VideoContent(_Value, frozen=True, tag_field="type", tag="VIDEO"):
    """A video file; None is allowed, as in LangChain4j."""

    video: Video | None = None

    def __post_init__(self) -> None:
        _check_type(self, "video", Video, optional=True)


class PdfFileContent(_Value, frozen=True, tag_field="type", tag="PDF"):
    """A PDF document; None is allowed, as in LangChain4j."""

    pdf_file: PdfFile | None = None

    def __post_init__(self) -> None:
        _check_type(self, "pdf_file", PdfFile, optional=True)


Content: TypeAlias = TextContent | ImageContent | AudioContent | VideoContent | PdfFileContent


class SystemMessage(_Value, frozen=True, tag_field="type", tag="SYSTEM"):
    """Instructions from the developer to the model. The text must not be blank."""

    type: ClassVar = MessageType.SYSTEM
    text: str

    def __post_init__(self) -> None:
        _check_type(self, "text", str)
        if not self.text.strip(BLANK):
            raise ValueError("SystemMessage.text is blank; it must have at least one visible character.")


class UserMessage(_Value, frozen=True, tag_field="type", tag="USER"):
    """
    A message from a user to the model.

    *contents* may be passed as a str, which stands for a single text, or as any sequence of contents; it is stored as a
    tuple and is never empty. *name* distinguishes several users.
    """

    type: ClassVar = MessageType.USER
    contents: tuple[Content | None, ...]
    name: str | None = None
    attributes: Mapping[str, Any] = NO_ATTRIBUTES

    if TYPE_CHECKING:  # accepts more types than it stores

        def __init__(
            self,
            contents: str | Sequence[Content | None],
            name: str | None = None,
            attributes: Mapping[str, Any] = NO_ATTRIBUTES,
        ) -> None: ...

    def __post_init__(self) -> None:
        _check_contents(self)
        if self.name is not None:
            _check_type(self, "name", str, optional=True)
        if self.attributes is not NO_ATTRIBUTES:
            _check_attributes(self)

    @property
    def has_single_text(self) -> bool:
        """Whether the message is a single text."""
        return _has_single_text(self.contents)

    @property
    def single_text(self) -> str:
        """The text of a message that is a single text; for any other, ``ValueError``."""
        return _single_text(self)


class ToolExecutionRequest(_Value, frozen=True):
    """A tool call that the model requests. *arguments* is the string that the model generated, which should be JSON."""

    id: str | None = None
    name: str | None = None
    arguments: str | None = None

    def __post_init__(self) -> None:
        for name in ("id", "name", "arguments"):
            _check_type(self, name, str, optional=True)


class AiMessage(_Value, frozen=True, tag_field="type", tag="AI"):
    """The model's answer: a text, tool calls, or both. *thinking* is the reasoning before it."""

    type: ClassVar = MessageType.AI
    text: str | None = None
    thinking: str | None = None
    tool_execution_requests: tuple[ToolExecutionRequest, ...] = ()
    attributes: Mapping[str, Any] = NO_ATTRIBUTES

    if TYPE_CHECKING:  # accepts more types than it stores

        def __init__(
            self,
            text: str | None = None,
            thinking: str | None = None,
            tool_execution_requests: Sequence[ToolExecutionRequest] = (),
            attributes: Mapping[str, Any] = NO_ATTRIBUTES,
        ) -> None: ...

    def __post_init__(self) -> None:
        if self.text.__class__ is not str:
            _check_type(self, "text", str, optional=True)
        if self.thinking is not None:
            _check_type(self, "thinking", str, optional=True)
        if self.tool_execution_requests != ():
            _check_items(self, "tool_execution_requests", (ToolExecutionRequest,))
        if self.attributes is not NO_ATTRIBUTES:
            _check_attributes(self)

    @property
    def images(self) -> list[Image]:
        """The images that the model has made, as LangChain4j keeps them: in the attribute ``generated_images``."""
        return msgspec.convert(self.attributes.get("generated_images", ()), list[Image])


class _TakesContents(msgspec.StructMeta):
    """Metaclass that explains what to pass instead of ``text``, which LangChain4j's builder accepts."""

    if not TYPE_CHECKING:  # for type checkers, __init__ declares the parameters

        def __call__(cls, *args, **kwargs):  # noqa: N805  # in a metaclass
            if "text" in kwargs:
                raise TypeError(
                    f"{cls.__name__} has no argument 'text'; pass the text as contents, the third argument: "
                    f'{cls.__name__}(id, tool_name, contents="…").'
                )
            return super().__call__(*args, **kwargs)


class ToolExecutionResultMessage(
    _Value, frozen=True, tag_field="type", tag="TOOL_EXECUTION_RESULT", metaclass=_TakesContents
):
    """
    The result of a tool call. *id* and *tool_name* are those of the request; *contents* as in ``UserMessage``.

    *is_error* indicates whether the tool failed; None if that is unknown.
    """

    type: ClassVar = MessageType.TOOL_EXECUTION_RESULT
    id: str | None = None
    tool_name: str | None = None
    contents: tuple[Content | None, ...] = ()
    is_error: bool | None = None
    attributes: Mapping[str, Any] = NO_ATTRIBUTES

    if TYPE_CHECKING:  # accepts more types than it stores

        def __init__(
            self,
            id: str | None = None,
            tool_name: str | None = None,
            contents: str | Sequence[Content | None] = ...,
            is_error: bool | None = None,
            attributes: Mapping[str, Any] = NO_ATTRIBUTES,
        ) -> None: ...

    def __post_init__(self) -> None:
        _check_type(self, "id", str, optional=True)
        _check_type(self, "tool_name", str, optional=True)
        _check_contents(self)
        _check_type(self, "is_error", bool, optional=True)
        _check_attributes(self)

    @classmethod
    def from_request(
        cls,
        request: ToolExecutionRequest,
        contents: str | Sequence[Content | None],
        *,
        is_error: bool | None = None,
    ) -> ToolExecutionResultMessage:
        """Return a result for *request*."""
        return cls(request.id, request.name, contents, is_error)

    @property
    def has_single_text(self) -> bool:
        """See ``UserMessage.has_single_text``."""
        return _has_single_text(self.contents)

    @property
    def text(self) -> str:
        """The text of a result that is a single text; for any other, ``ValueError``."""
        return _single_text(self)


class CustomMessage(_Value, frozen=True, tag_field="type", tag="CUSTOM"):
    """Any other message that a model understands: a JSON object."""

    type: ClassVar = MessageType.CUSTOM
    attributes: Mapping[str, Any]

    def __post_init__(self) -> None:
        _check_attributes(self)

    @property
    def text(self) -> str:
        """The strings in it, one per line, for searching and counting. Encoded files are left out."""
        return "\n".join(text for text in strings_in(self.attributes) if not _is_encoded(text))


ChatMessage: TypeAlias = SystemMessage | UserMessage | AiMessage | ToolExecutionResultMessage | CustomMessage

Metadata: TypeAlias = Mapping[str, Any] | None
"""What a site stores with a message, a JSON object: the model, its usage, why it stopped."""

MESSAGE_CLASSES = (SystemMessage, UserMessage, AiMessage, ToolExecutionResultMessage, CustomMessage)
_TYPES: frozenset[type] = frozenset(MESSAGE_CLASSES)
_IMMUTABLE: frozenset[type] = frozenset({type(None), bool, int, str})
CONTENT_CLASSES = (TextContent, ImageContent, AudioContent, VideoContent, PdfFileContent)


class NewMessage(msgspec.Struct, frozen=True):
    """
    A message to add, with what is stored with it. A message that is added as it is has none of this.

    *metadata* is a JSON object. A message whose *client_message_id*, of up to 64 characters, already exists in the
    conversation is not stored again, so a failed call can be retried, until a prune deletes the message. *verbatim* is
    for adapters of other frameworks: the framework's original as JSON, or None if the message alone is enough to
    restore it. The store checks all of it when the message is added.
    """

    message: ChatMessage
    metadata: Metadata = None
    client_message_id: str | None = None
    verbatim: str | None = None


def checked_messages(messages: Iterable[ChatMessage]) -> tuple[ChatMessage, ...]:
    """
    Return *messages* as a tuple.

    Raises:
        TypeError: One of *messages* is not a message; the error names its index.

    """
    checked = tuple(messages)
    if not _TYPES.issuperset(map(type, checked)):  # quicker than one by one
        for index, message in enumerate(checked):
            if not isinstance(message, MESSAGE_CLASSES):
                raise TypeError(f"messages[{index}] must be a message, not {type(message).__name__}.")
    return checked


def one_by_one(messages: Sequence[_M | Iterable[_M]]) -> Sequence[_M]:
    """Return *messages*, or those in the iterable that is the only one: as the overloads of LangChain4j's memories."""
    only = messages[0] if len(messages) == 1 else None
    return tuple(only) if isinstance(only, Iterable) else messages  # type: ignore[return-value]


def new_messages(messages: Iterable[ChatMessage | NewMessage]) -> list[NewMessage]:
    """Return each of *messages* as a ``NewMessage``; ``TypeError``, which names its index, if one is no message."""
    new = [each if isinstance(each, NewMessage) else NewMessage(each) for each in messages]
    checked_messages([each.message for each in new])
    return new


def _check_type(value: _Value, name: str, expected: type, *, optional: bool = False) -> None:
    given = getattr(value, name)
    if given.__class__ is expected or (optional and given is None):
        return
    if isinstance(given, expected):
        if isinstance(
            given, (str, bytes)
        ):  # Django's SafeString, for example: the JSON encoder accepts only plain str and bytes
            force_setattr(value, name, "".join((given,)) if isinstance(given, str) else b"".join((given,)))
        return
    wanted = f"{expected.__name__} or None" if optional else expected.__name__
    raise TypeError(f"{type(value).__name__}.{name} must be {wanted}, not {type(given).__name__}.")


def _check_items(value: _Value, name: str, expected: tuple[type, ...]) -> None:
    """Convert the sequence in the field *name* to a tuple, and check its items."""
    given = getattr(value, name)
    where = f"{type(value).__name__}.{name}"
    if not isinstance(given, tuple):
        if not isinstance(given, Sequence) or isinstance(given, (str, bytes, bytearray)):
            raise TypeError(f"{where} must be a sequence, not {type(given).__name__}.")
        given = tuple(given)
        force_setattr(value, name, given)
    for index, item in enumerate(given):
        if not isinstance(item, expected):
            wanted = " or ".join(cls.__name__ for cls in expected)
            raise TypeError(f"{where}[{index}] must be {wanted}, not {type(item).__name__}.")


def _check_contents(value: UserMessage | ToolExecutionResultMessage) -> None:
    given: object = value.contents
    if given.__class__ is str or isinstance(given, str):
        force_setattr(value, "contents", (TextContent(given),))
        return
    _check_items(value, "contents", (*CONTENT_CLASSES, type(None)))
    if not value.contents:
        raise ValueError(f"{type(value).__name__}.contents is empty; it must have at least one content.")


def _has_single_text(contents: tuple[Content | None, ...]) -> bool:
    return len(contents) == 1 and isinstance(contents[0], TextContent)


def _single_text(value: UserMessage | ToolExecutionResultMessage) -> str:
    if _has_single_text(value.contents):
        return value.contents[0].text  # type: ignore[union-attr]
    kinds = ", ".join(type(content).__name__ for content in value.contents)
    raise ValueError(f"{type(value).__name__} is not a single text but ({kinds}); read its contents instead.")


def _check_attributes(value: UserMessage | AiMessage | ToolExecutionResultMessage | CustomMessage) -> None:
    given: object = value.attributes
    if given.__class__ is Attributes:
        return  # checked when another message was built with it
    if not isinstance(given, Mapping):
        raise TypeError(f"{type(value).__name__}.attributes must be a mapping, not {type(given).__name__}.")
    copied = copy_json(given, f"{type(value).__name__}.attributes", MAX_ATTRIBUTE_DEPTH) if given else NO_ATTRIBUTES
    force_setattr(value, "attributes", Attributes(copied))


def strings_in(value: object) -> Iterator[str]:
    """Yield the strings in the JSON *value*, except keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from strings_in(item)


def _is_encoded(text: str) -> bool:
    """Return whether *text* looks like a file in Base64 or a similar encoding, or like its mark: prose has spaces."""
    return (len(text) > MAX_WORD or CUT in text) and not any(map(str.isspace, text[:MAX_WORD]))


def copy_json(value: object, where: str, max_depth: int, depth: int = 0) -> Any:
    """
    Return a copy of the JSON *value* that shares nothing mutable with it.

    Raises:
        TypeError: *where* holds a value or a key that JSON cannot represent.
        ValueError: It holds a number that JSON cannot represent, or is nested deeper than *max_depth*.

    """
    if value.__class__ in _IMMUTABLE:
        return value
    if isinstance(value, str):
        return "".join((value,))
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        raise ValueError(f"{where} is {value}, which JSON cannot represent; use a finite number or None.")
    if depth == max_depth:
        raise ValueError(f"{where.partition('[')[0]} are nested deeper than {max_depth} levels; flatten them.")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{where} has a key of type {type(key).__name__}; JSON keys must be str.")
        return {
            key: item if item.__class__ in _IMMUTABLE else copy_json(item, f"{where}[{key!r}]", max_depth, depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [copy_json(item, f"{where}[{index}]", max_depth, depth + 1) for index, item in enumerate(value)]
    raise TypeError(f"{where} is a {type(value).__name__}, which JSON cannot represent.")
