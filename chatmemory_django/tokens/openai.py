"""Token counting for OpenAI's models."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property

from chatmemory_django.messages import (
    BLANK,
    AiMessage,
    Audio,
    AudioContent,
    ChatMessage,
    Content,
    CustomMessage,
    ImageContent,
    PdfFile,
    PdfFileContent,
    SystemMessage,
    TextContent,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
    Video,
    VideoContent,
)
from chatmemory_django.tokens.encodings import base_model, encoding_name, get_encoding
from chatmemory_django.tokens.images import DEFAULT_RULE, image_rule, image_tokens

AUDIO_TOKENS = (1_600, 600)
"""
Bytes per token, and the tokens of an audio file of unknown size (a minute). OpenAI counts 10 tokens per second of a
user's voice (https://developers.openai.com/api/docs/guides/realtime-costs, 2026); the assumed bit rate is 128 kbit/s,
which is common for MP3.
"""

VIDEO_TOKENS = (425, 3_000)
"""
Bytes per token, and the tokens of a video of unknown size (ten seconds). OpenAI accepts no video; Gemini counts about
300 tokens per second with sound (https://ai.google.dev/gemini-api/docs/tokens, 2026); the assumed bit rate is 1 Mbit/s,
which is common on the web.
"""

PDF_TOKENS = (67, 1_500)
"""
Bytes per token, and the tokens of a document of unknown size (a page). OpenAI sends each page as text and as an image
(https://developers.openai.com/api/docs/guides/pdf-files, 2026): about 1,500 tokens, and 100 kB, a page.
"""

PIECE_LENGTH = 20_000
"""
The length of the pieces in which longer texts are encoded, in characters: tiktoken panics at a million spaces in a row
(0.14), and its time grows with the square of a run's length (up to 0.12).
"""

_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

# A piece ends before a space if possible, where every encoding ends a token, too, so the count stays exact. A cut
# inside a run of 20,000 characters without a space may add a token or two.
_PIECE = re.compile(rf".{{1,{PIECE_LENGTH - 1}}}\S(?= )|.{{1,{PIECE_LENGTH}}}", re.DOTALL)


class OpenAiTokenCountEstimator:
    """
    Counts tokens for OpenAI's models, exactly like LangChain4j's estimator of the same name.

    In addition, images and other files are counted instead of rejected: images by OpenAI's rules (see
    ``tokens.images``), the rest by ``AUDIO_TOKENS``, ``VIDEO_TOKENS`` and ``PDF_TOKENS``. Attributes and thinking are
    not counted.

    Args:
        model_name: Such as "gpt-4o" or "ft:gpt-4o-mini:org::id", as OpenAI writes it; a fine-tuned model is counted
            like the one it was made from. The encoding is loaded at the first count.

    Raises:
        TypeError: *model_name* is not a str.
        ValueError: *model_name* is blank, or no encoding is known for it.

    """

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name
        self._encoding_name = encoding_name(model_name)
        base = base_model(model_name)
        self._image_rule = image_rule(model_name)
        self._tokens_per_ai_message = 2 if base.startswith("o4") else 0
        self.tokens_per_list = 2 if base.startswith("o") else 3
        # Everything that the counts depend on, so that a rule that changes in a later release changes the name, too.
        rule_name = "" if self._image_rule == DEFAULT_RULE else f"/{self._image_rule.name}"
        self.name = f"{self._encoding_name}{rule_name}{'/o4' if self._tokens_per_ai_message else ''}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model_name!r})"

    def estimate_token_count_in_text(self, text: str) -> int:
        """Return the number of tokens in *text*; special tokens are counted as plain text."""
        encode = self._encode
        if len(text) <= PIECE_LENGTH:
            return len(encode(text))
        return sum(len(encode(piece[0])) for piece in _PIECE.finditer(text))

    def estimate_token_count_in_message(self, message: ChatMessage) -> int:
        """Return the number of tokens in *message*: 4 and those of its contents."""
        match message:
            case SystemMessage():
                return 4 + self.estimate_token_count_in_text(message.text)
            case UserMessage():
                name = 0 if message.name is None else 1 + self.estimate_token_count_in_text(message.name)
                return 4 + name + sum(map(self._in_content, message.contents))
            case AiMessage():
                text = 0 if message.text is None else self.estimate_token_count_in_text(message.text)
                return 4 + self._tokens_per_ai_message + text + self._in_requests(message.tool_execution_requests)
            case ToolExecutionResultMessage():
                return 4 + sum(map(self._in_content, message.contents))
            case CustomMessage():
                return 4 + self.estimate_token_count_in_text(message.text)
            case _:
                raise TypeError(f"Cannot count the tokens of {type(message).__name__}; it is not a message.")

    def estimate_token_count_in_messages(self, messages: Iterable[ChatMessage]) -> int:
        """Return the number of tokens in *messages*: ``tokens_per_list`` and the sum of their tokens."""
        return self.tokens_per_list + sum(map(self.estimate_token_count_in_message, messages))

    @cached_property
    def _encode(self) -> Callable[[str], list[int]]:
        return get_encoding(self._encoding_name).encode_ordinary

    def _in_content(self, content: Content | None) -> int:
        match content:
            case TextContent():
                return self.estimate_token_count_in_text(content.text)
            case ImageContent():
                return image_tokens(content.image, content.detail_level, self._image_rule)
            case AudioContent():
                return _in_file(content.audio, *AUDIO_TOKENS)
            case VideoContent():
                return _in_file(content.video, *VIDEO_TOKENS)
            case PdfFileContent():
                return _in_file(content.pdf_file, *PDF_TOKENS)
            case None:
                return 0

    def _in_requests(self, requests: tuple[ToolExecutionRequest, ...]) -> int:
        """Return the same count as LangChain4j, which derived its figures from OpenAI's API."""
        count = self.estimate_token_count_in_text
        if not requests:
            return 0
        if len(requests) == 1:
            return 6 - 1 + 2 * count(requests[0].name or "") + count(requests[0].arguments or "")
        return 6 + 15 + sum(7 + count(each.name or "") + self._in_arguments(each.arguments or "") for each in requests)

    def _in_arguments(self, arguments: str) -> int:
        """Return the count by entries if *arguments* is a JSON object; if not, since models make mistakes, as text."""
        count = self.estimate_token_count_in_text
        if not arguments.strip(BLANK):
            return 0
        with suppress(ValueError, RecursionError):
            entries = json.loads(arguments)
            if isinstance(entries, dict):
                texts = (value if isinstance(value, str) else _to_json(value) for value in entries.values())
                return 2 * len(entries) + sum(map(count, (*entries, *texts)))
        return count(arguments)


def _in_file(file: Audio | Video | PdfFile | None, bytes_per_token: int, unknown: int) -> int:
    """Return the count by the size of *file*, if its content is there."""
    if file is None:
        return 0
    if file.file is not None:  # in a storage: the same as if it were here, in Base64 if it came so
        is_binary = isinstance(file, Audio) and file.binary_data is not None
        encoded = 4 * -(-file.file.size // 3) + len(file.url or "")
        size = file.file.size if is_binary else encoded * 3 // 4
    elif isinstance(file, Audio) and file.binary_data is not None:
        size = len(file.binary_data)
    elif file.base64_data is not None:
        size = len(file.base64_data) * 3 // 4
    elif file.url is not None and file.url[:5].lower() == "data:":
        size = len(file.url) * 3 // 4
    else:
        return unknown
    return max(1, size // bytes_per_token)
