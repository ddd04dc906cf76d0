"""
Conversion of messages from and to OpenAI's chat completions, as that API was in 2026.

The format has no field for what is stored with a message and never sent: thinking, attributes, whether a tool failed,
the revised prompt of an image. Everything else is converted without loss, or a ``ValueError`` describes what the format
does not support. An assistant's ``name``, ``refusal``, ``audio`` and ``annotations`` are attributes of an
``AiMessage``.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from chatmemory_django.formats.openai_files import AUDIO_TYPES, PDF_NAME, to_image
from chatmemory_django.messages import (
    AiMessage,
    Audio,
    AudioContent,
    ChatMessage,
    Content,
    DetailLevel,
    Image,
    ImageContent,
    PdfFile,
    PdfFileContent,
    SystemMessage,
    TextContent,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)

ASSISTANT_ATTRIBUTES = ("name", "refusal", "audio", "annotations")
"""The fields of an assistant's message that an ``AiMessage`` has only as attributes."""

INVALID = (ValueError, TypeError, msgspec.ValidationError)
"""The errors of msgspec and of the messages' own checks."""


class _Part(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A piece of OpenAI's format."""


class OpenAiImageUrl(_Part):
    """An image, as a URL or a data URL."""

    url: str
    detail: Literal["auto", "low", "high"] | None = None


class OpenAiInputAudio(_Part):
    """A sound in Base64."""

    data: str
    format: Literal["wav", "mp3"]


class OpenAiFile(_Part):
    """A document as a data URL."""

    file_data: Annotated[str, msgspec.Meta(pattern="^data:application/pdf;base64,")]
    filename: str | None = None


class OpenAiTextPart(_Part, tag_field="type", tag="text"):
    """A text part."""

    text: str


class OpenAiImagePart(_Part, tag_field="type", tag="image_url"):
    """An image part."""

    image_url: OpenAiImageUrl


class OpenAiAudioPart(_Part, tag_field="type", tag="input_audio"):
    """An audio part."""

    input_audio: OpenAiInputAudio


class OpenAiFilePart(_Part, tag_field="type", tag="file"):
    """A document part."""

    file: OpenAiFile


OpenAiPart: TypeAlias = OpenAiTextPart | OpenAiImagePart | OpenAiAudioPart | OpenAiFilePart
_NotBlank: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"[^\u0000-\u0020]")]


class OpenAiOnlyPart(_Part):
    """A text part where no other part is allowed."""

    # No tag: msgspec requires one only in unions.
    type: Literal["text"]
    text: str


class OpenAiNotBlankPart(_Part):
    """A text part that must not be blank."""

    type: Literal["text"]
    text: _NotBlank


# A tuple instead of a list of length 1: in a union of a str with a pattern and a list or a dict, msgspec (0.22) frees
# the compiled pattern as if it were the item type, and some processes crash when they end.
_OneText: TypeAlias = tuple[OpenAiOnlyPart]
_OneNotBlank: TypeAlias = tuple[OpenAiNotBlankPart]


class OpenAiFunction(_Part):
    """The name of the function that the model calls, and its arguments."""

    name: str
    arguments: str


class OpenAiToolCall(_Part):
    """A call of a function."""

    type: Literal["function"]
    id: str
    function: OpenAiFunction


class OpenAiSystemMessage(_Part, tag_field="role", tag="system"):
    """A message of the developer to the model."""

    content: _NotBlank | _OneNotBlank


class OpenAiDeveloperMessage(_Part, tag_field="role", tag="developer"):
    """The system message of newer models; it is converted to a system message, too."""

    content: _NotBlank | _OneNotBlank


class OpenAiUserMessage(_Part, tag_field="role", tag="user"):
    """A message of the user."""

    content: str | Annotated[list[OpenAiPart], msgspec.Meta(min_length=1)]
    name: str | None = None


class OpenAiAssistantMessage(_Part, tag_field="role", tag="assistant"):
    """A message of the model."""

    content: str | _OneText | None = None
    tool_calls: list[OpenAiToolCall] | None = None
    name: str | None = None
    refusal: str | None = None
    audio: dict[str, Any] | None = None
    annotations: list[dict[str, Any]] | None = None


class OpenAiToolMessage(_Part, tag_field="role", tag="tool"):
    """The result of a tool."""

    tool_call_id: str
    content: str | _OneText


OpenAiMessage: TypeAlias = (
    OpenAiSystemMessage | OpenAiDeveloperMessage | OpenAiUserMessage | OpenAiAssistantMessage | OpenAiToolMessage
)


def to_openai(messages: Iterable[ChatMessage]) -> list[dict[str, Any]]:
    """Convert *messages* to OpenAI's format, one for each; ``ValueError`` names the first that has no equivalent."""
    written = []
    for index, message in enumerate(messages):
        try:
            written.append(message_to_openai(message))
        except ValueError as exc:
            raise ValueError(f"messages[{index}] cannot be converted to OpenAI's format: {exc}") from None
    return written


def message_to_openai(message: ChatMessage) -> dict[str, Any]:
    """Convert one *message* to OpenAI's format; raise ``ValueError`` if it has no equivalent."""
    try:
        written: dict[str, Any] = msgspec.to_builtins(_written(message))
    except INVALID as exc:
        raise ValueError(str(exc)) from None
    return written


def from_openai(messages: Sequence[Mapping[str, Any]]) -> list[ChatMessage]:
    """
    Convert OpenAI's *messages* to messages, one for each; ``ValueError`` describes the first invalid one.

    The name of the tool in a result is taken from its call, if the call is among them.
    """
    read: list[ChatMessage] = []
    tool_names: dict[str, str | None] = {}
    for index, message in enumerate(messages):
        try:
            read.append(message_from_openai(message, tool_names))
        except INVALID as exc:
            raise ValueError(_placed(str(exc), f"$[{index}]")) from None
    return read


def message_from_openai(message: Mapping[str, Any], tool_names: dict[str, str | None]) -> ChatMessage:
    """
    Convert one of OpenAI's messages; raise one of ``INVALID``, with msgspec's description, if it is invalid.

    *tool_names* has the names of the previous calls by their id; the names of this message's calls are added to it.
    """
    return _read(msgspec.convert(dict(message), OpenAiMessage), tool_names)


def _placed(reason: str, where: str) -> str:
    what, _, path = reason.rpartition(" - at `$")
    return f"{where}{path.removesuffix('`')}: {what}." if what else f"{where}: {reason}"


def _written(message: ChatMessage) -> OpenAiMessage:
    match message:
        case SystemMessage():
            return OpenAiSystemMessage(message.text)
        case UserMessage():
            if message.has_single_text:
                return OpenAiUserMessage(message.single_text, message.name or None)
            return OpenAiUserMessage(list(map(_written_part, message.contents)), message.name or None)
        case AiMessage():
            return _written_answer(message)
        case ToolExecutionResultMessage():
            if message.id is None:
                raise ValueError("a tool's result needs the id of its call.")
            return OpenAiToolMessage(message.id, message.text)
        case _:
            raise ValueError(f"{type(message).__name__} is not supported.")


def _written_answer(message: AiMessage) -> OpenAiAssistantMessage:
    others = {name: message.attributes[name] for name in ASSISTANT_ATTRIBUTES if name in message.attributes}
    if message.text is None and not message.tool_execution_requests and not others.keys() & {"refusal", "audio"}:
        raise ValueError("an AiMessage needs a text or tool calls.")
    calls = [_written_call(request) for request in message.tool_execution_requests]
    answer: OpenAiAssistantMessage = msgspec.convert({"role": "assistant", **others}, OpenAiAssistantMessage)
    return msgspec.structs.replace(answer, content=message.text, tool_calls=calls or None)


def _written_call(request: ToolExecutionRequest) -> OpenAiToolCall:
    if request.id is None or request.name is None or request.arguments is None:
        raise ValueError("a tool call needs an id, a name and arguments.")
    return OpenAiToolCall("function", request.id, OpenAiFunction(request.name, request.arguments))


def _written_part(content: Content | None) -> OpenAiPart:
    match content:
        case TextContent():
            return OpenAiTextPart(content.text)
        case ImageContent():
            return OpenAiImagePart(OpenAiImageUrl(_image_url(content.image), _detail(content.detail_level)))
        case AudioContent(audio=Audio() as audio):
            return OpenAiAudioPart(_input_audio(audio))
        case PdfFileContent(pdf_file=PdfFile() as file) if file.base64_data is not None:
            if file.mime_type not in {None, "application/pdf"}:
                raise ValueError(f"a PdfFile cannot have the type {file.mime_type!r}.")
            return OpenAiFilePart(OpenAiFile(f"data:application/pdf;base64,{file.base64_data}", PDF_NAME))
        case PdfFileContent():
            raise ValueError("a PdfFile needs base64_data; URLs are not supported.")
        case _:
            raise ValueError(f"{'an empty content' if content is None else type(content).__name__} is not supported.")


def _image_url(image: Image) -> str:
    if image.base64_data is not None and image.mime_type is not None:
        return f"data:{image.mime_type};base64,{image.base64_data}"
    if image.url is None or image.base64_data is not None:
        raise ValueError("an Image needs a url, or base64_data and its mime_type.")
    return image.url


def _detail(level: DetailLevel) -> Literal["auto", "low", "high"]:
    match level:
        case DetailLevel.AUTO:
            return "auto"
        case DetailLevel.LOW:
            return "low"
        case DetailLevel.HIGH:
            return "high"
        case _:
            raise ValueError(f"the detail level {level.value} is not supported; use LOW, HIGH or AUTO.")


def _input_audio(audio: Audio) -> OpenAiInputAudio:
    data: str | None = audio.base64_data
    if data is None and audio.binary_data is not None:
        data = base64.b64encode(audio.binary_data).decode()
    formats: list[Literal["wav", "mp3"]] = ["wav", "mp3"]
    for name in formats:
        if data is not None and audio.mime_type == AUDIO_TYPES[name]:
            return OpenAiInputAudio(data, name)
    raise ValueError(
        f"an Audio needs its content, and its mime_type must be {' or '.join(AUDIO_TYPES.values())}, "
        f"not {audio.mime_type!r}."
    )


def _read(message: OpenAiMessage, tool_names: dict[str, str | None]) -> ChatMessage:
    match message:
        case OpenAiSystemMessage() | OpenAiDeveloperMessage():
            return SystemMessage(_one_text(message.content))
        case OpenAiUserMessage(content=str() as text):
            return UserMessage(text, message.name)
        case OpenAiUserMessage():
            return UserMessage(list(map(_read_part, message.content)), message.name)  # type: ignore[arg-type]
        case OpenAiAssistantMessage():
            calls = [
                ToolExecutionRequest(call.id, call.function.name, call.function.arguments)
                for call in message.tool_calls or ()
            ]
            tool_names.update({call.id: call.name for call in calls if call.id is not None})
            others = {name: getattr(message, name) for name in ASSISTANT_ATTRIBUTES}
            answer = None if message.content is None else _one_text(message.content)
            return AiMessage(answer, None, calls, {name: value for name, value in others.items() if value is not None})
        case OpenAiToolMessage():
            tool_name = tool_names.get(message.tool_call_id)
            return ToolExecutionResultMessage(message.tool_call_id, tool_name, _one_text(message.content))


def _one_text(content: str | Sequence[OpenAiOnlyPart | OpenAiNotBlankPart]) -> str:
    return content if isinstance(content, str) else content[0].text


def _read_part(part: OpenAiPart) -> Content:
    match part:
        case OpenAiTextPart():
            return TextContent(part.text)
        case OpenAiImagePart():
            # OpenAI's default is "auto".
            level = DetailLevel[(part.image_url.detail or "auto").upper()]
            return ImageContent(to_image(part.image_url.url), level)
        case OpenAiAudioPart():
            audio = part.input_audio
            return AudioContent(Audio(base64_data=audio.data, mime_type=AUDIO_TYPES[audio.format]))
        case OpenAiFilePart():
            encoded = part.file.file_data.partition(",")[2]
            return PdfFileContent(PdfFile(base64_data=encoded, mime_type="application/pdf"))
