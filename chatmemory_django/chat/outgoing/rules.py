"""
What each vendor accepts, the strictest that it documents.

A new ``Rules()`` is the strictest of all: what it allows, every vendor allows. A profile states what its vendor allows
beyond that. Files and calls are the exceptions: unknown models are sent files of all kinds, and many calls at a time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum
from urllib.parse import urlsplit


class System(Enum):
    """Where system messages may be."""

    ANYWHERE = "anywhere"
    FIRST = "first"
    """In front of all others, or in a field of their own."""
    ONE = "one"
    """In front of all others, and only one."""


class Words(Enum):
    """Which texts may be blank."""

    ANY = "any"
    VISIBLE = "visible"
    """None: each has a character that is not white space."""
    NEVER_NULL = "never_null"
    """Any may, and an answer that only calls tools has an empty text: chat templates fail on none."""


class Calls(Enum):
    """How an answer may call tools."""

    MANY = "many"
    ONE = "one"
    """One call in each answer, with its result behind it."""
    TEXT = "text"
    """In words, as the results are in a user's: the chat template knows no tools."""


KINDS = frozenset({"image", "audio", "video", "pdf"})
"""The kinds of files."""

PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""The media types of images that all vendors take, except GIF, which Gemini does not."""

ANYTHING = re.compile(".+", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a vendor accepts. For another one, change a profile with ``dataclasses.replace``."""

    system: System = System.ONE
    """Where system messages may be."""
    begins_with_user: bool = True
    """Whether the first message, system messages aside, must be a user's ..."""
    ends_with_answer: bool = False
    """... and whether the last one may be the assistant's."""
    alternates: bool = True
    """Whether neither two messages of a user nor two answers may follow each other."""
    user_after_result: bool = False
    """Whether a user's message may follow the result of a tool."""
    words: Words = Words.VISIBLE
    """Which texts may be blank."""
    calls: Calls = Calls.MANY
    """How an answer may call tools."""
    call_id: re.Pattern[str] = re.compile("[A-Za-z0-9_-]{1,40}")
    """What the id of a call matches, which is always unique, ..."""
    tool_name: re.Pattern[str] = re.compile("[A-Za-z0-9_-]{1,64}")
    """... and the name of its tool."""
    reads_arguments: bool = True
    """Whether the arguments of a call must be a JSON object."""
    specifies_tools: bool = False
    """Whether a request that has calls in its messages must specify tools."""
    files: frozenset[str] = KINDS
    """The kinds of files, of ``KINDS``, that the model takes, ..."""
    result_files: frozenset[str] = KINDS
    """... those of them that it takes in the result of a tool, too, ..."""
    linked: frozenset[str] = KINDS
    """... and those that may be given by a URL."""
    image_types: frozenset[str] | None = None
    """The media types of images, ..."""
    audio_types: frozenset[str] | None = None
    """... and those of audio files; None for all."""
    max_images: int | None = 100
    """How many images a request may have."""
    text_beside_pdf: bool = True
    """Whether a message with a PDF file must have a text."""
    returns_reasoning: bool = False
    """Whether an answer that calls tools must have ``reasoning_content``, the model's thinking, ..."""
    vendor: str = ""
    """... and the vendor's name: nobody else's thinking goes back. A model without one gives its own."""
    returns_responses: bool = True
    """Whether the model's class sends back what the vendor sent with an answer, such as signatures of thinking, ..."""
    repeats_responses: bool = False
    """... and whether that may be there twice, where a memory has the answer twice."""


STRICTEST = Rules()
"""For a model whose vendor is not known."""

OPENAI = Rules(
    system=System.ANYWHERE,
    begins_with_user=False,
    ends_with_answer=True,
    alternates=False,
    user_after_result=True,
    words=Words.ANY,
    call_id=re.compile(".{1,40}", re.DOTALL),
    reads_arguments=False,
    files=frozenset({"image", "audio", "pdf"}),
    image_types=PICTURES,
    max_images=None,
    text_beside_pdf=False,
    repeats_responses=True,
)
"""OpenAI's chat completions."""

OPENAI_RESPONSES = replace(
    OPENAI,
    call_id=re.compile(".{1,64}", re.DOTALL),
    files=frozenset({"image", "pdf"}),
    repeats_responses=False,
)
"""OpenAI's responses."""

ANTHROPIC = Rules(
    system=System.FIRST,
    alternates=False,
    user_after_result=True,
    call_id=re.compile("[A-Za-z0-9_-]+"),
    tool_name=re.compile("[A-Za-z0-9_-]{1,128}"),
    files=frozenset({"image", "pdf"}),
    image_types=PICTURES,
    text_beside_pdf=False,
    repeats_responses=True,
)
"""Claude. Anthropic itself combines messages of the same role."""

GEMINI = Rules(
    system=System.FIRST,
    user_after_result=True,
    call_id=ANYTHING,
    tool_name=re.compile("[A-Za-z0-9_.:-]{1,64}"),
    image_types=PICTURES - {"image/gif"} | {"image/heic", "image/heif"},
    max_images=None,
    text_beside_pdf=False,
    repeats_responses=True,
)
"""Gemini. Only answers that call tools may not follow another, but they are merged alike."""

BEDROCK = Rules(
    system=System.FIRST,
    user_after_result=True,
    call_id=re.compile("[A-Za-z0-9_-]{1,64}"),
    specifies_tools=True,
    files=frozenset({"image", "pdf"}),
    image_types=PICTURES,
    result_files=frozenset({"image"}),
    repeats_responses=True,
)
"""Amazon Bedrock's Converse."""

MISTRAL = Rules(
    system=System.FIRST,
    alternates=False,
    words=Words.ANY,
    call_id=re.compile("[A-Za-z0-9]{9}"),
    files=frozenset({"image"}),
    image_types=PICTURES,
    max_images=None,
)
"""Mistral, and servers of its models."""

DEEPSEEK = replace(OPENAI, call_id=ANYTHING, files=frozenset(), returns_reasoning=True, vendor="deepseek")
"""DeepSeek's own server."""

MOONSHOT = replace(DEEPSEEK, vendor="moonshotai")
"""Moonshot's own server, of Kimi: its rules are those of DeepSeek's."""

OPEN_MODEL = Rules(words=Words.NEVER_NULL, call_id=ANYTHING, tool_name=ANYTHING, ends_with_answer=True)
"""
Qwen, GLM and other open models behind vLLM, SGLang, llama.cpp or Ollama: their chat templates have rules.
"""

LLAMA_3 = replace(OPEN_MODEL, calls=Calls.ONE)
"""Llama 3, whose template takes one call at a time."""

WITHOUT_TOOLS = replace(OPEN_MODEL, calls=Calls.TEXT)
"""Gemma 3 and Cohere's open models, whose templates know no tools."""

HOSTS = {
    "api.openai.com": OPENAI,
    "openai.azure.com": OPENAI,
    "api.anthropic.com": ANTHROPIC,
    "generativelanguage.googleapis.com": GEMINI,
    "aiplatform.googleapis.com": GEMINI,
    "amazonaws.com": BEDROCK,
    "api.mistral.ai": MISTRAL,
    "api.deepseek.com": DEEPSEEK,
    "moonshot.ai": MOONSHOT,
    "moonshot.cn": MOONSHOT,
}
"""The profiles of vendors' own servers, by the end of the host's name."""

NAMES = {
    re.compile(".*claude"): ANTHROPIC,
    re.compile(".*gemini"): GEMINI,
    re.compile(".*(stral|xtral)"): MISTRAL,
    re.compile(".*(gemma-?3|cohere|aya-)"): WITHOUT_TOOLS,
    re.compile(".*llama-?3"): LLAMA_3,
    re.compile(".*(gpt-oss|qwen|qwq|gemma|llama|glm|command-|[:/])"): OPEN_MODEL,
    re.compile("(chat)?gpt-|o[1-9]"): OPENAI,
    re.compile("deepseek-"): DEEPSEEK,
    re.compile("kimi-|moonshot-"): MOONSHOT,
}
"""The profiles of models behind other servers, by the beginning of the name: the first that matches decides."""


def rules_of(model_name: str, base_url: str | None = None) -> Rules:
    """Return the profile of a model: by the host of *base_url*, else by its name, else ``STRICTEST``."""
    host = urlsplit(base_url or "").hostname or ""
    for end, rules in HOSTS.items():
        if host == end or host.endswith(f".{end}"):
            return rules
    name = model_name.lower()
    return next((rules for pattern, rules in NAMES.items() if pattern.match(name)), STRICTEST)
