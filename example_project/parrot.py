"""An offline chat model that understands nothing, to demonstrate what a memory does."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from typing import Any

from chatmemory_django.chat.model import (
    ChatEvent,
    ChatModel,
    ChatRequest,
    ChatResponse,
    ChatResponseMetadata,
    FinishReason,
    InvalidRequestError,
    PartialText,
    PartialThinking,
    PartialToolCall,
    TokenUsage,
    ToolChoice,
    UnavailableError,
)
from chatmemory_django.codec import messages_to_json
from chatmemory_django.core.media import contents_in
from chatmemory_django.messages import (
    AiMessage,
    AudioContent,
    ChatMessage,
    ImageContent,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
    VideoContent,
)
from chatmemory_django.tokens import TokenCountEstimator
from example_project.facts import (
    EVERYTHING,
    Facts,
    Language,
    facts_in,
    in_words,
    questions_in,
    text_of,
    to_search_for,
)

WORDS = {
    "noted": {"en": "Noted: {}.", "de": "Notiert: {}."},
    "known": {"en": "{}.", "de": "{}."},
    "all": {"en": "This is what I know of you:", "de": "Das weiß ich von dir:"},
    "unknown": {
        "en": "I do not know: it is not in the messages that I was sent. I can search evicted ones: “Search for {}”.",
        "de": "Das weiß ich nicht: Nichts, was ich bekommen habe, sagt es. Ich kann suchen, was mein Gedächtnis "
        "verlassen hat: „Suche nach {}“.",
    },
    "recalled": {"en": "In earlier chats:", "de": "In früheren Chats:"},
    "you": {"en": "you", "de": "du"},
    "me": {"en": "I", "de": "ich"},
    "not recalled": {
        "en": "Nothing that was written in earlier chats has these words.",
        "de": "Nichts, was in früheren Chats gesagt wurde, enthält diese Wörter.",
    },
    "failed": {"en": "That failed: {}", "de": "Das hat nicht geklappt: {}"},
    "hello": {
        "en": "Hello! I am Parrot, not a real LLM. What is your name?",
        "de": "Hallo! Ich bin Parrot und kein echtes LLM. Wie heißt du?",
    },
    "image": {
        "en": "I was sent an image, but I cannot see it.",
        "de": "Ich habe ein Bild bekommen, kann aber nicht sehen.",
    },
    "self": {
        "en": "I am **Parrot**, a few pages of Python and not a real LLM. I repeat facts from the messages that "
        "I am sent:\n\n"
        "- *My name is Ada*, then *What is my name?*\n"
        "- *What time is it?*, *What is the weather in Bergen?*, *What is 2 + 3?*\n"
        "- *Search for name* looks at evicted messages, *What did I tell you about tea?* at earlier chats\n"
        "- *Call this chat Holidays* asks for your approval first\n"
        "- *Count to 100* takes a while, *Think aloud* shows thinking, *Fail* raises an error",
        "de": "Ich bin **Parrot**, ein paar Seiten Python und kein echtes LLM. Ich wiederhole, was in den Nachrichten "
        "steht, die ich bekomme:\n\n"
        "- *Ich heiße Ada*, dann *Wie heiße ich?*\n"
        "- *Wie spät ist es?*, *Wie ist das Wetter in Bergen?*, *Was ist 2 + 3?*\n"
        "- *Suche nach Name* schaut in dem nach, was mein Gedächtnis verlassen hat, *Was habe ich dir über Tee "
        "erzählt?* in früheren Chats\n"
        "- *Nenne diesen Chat Urlaub* fragt dich erst um Erlaubnis\n"
        "- *Zähle bis 100* dauert, *Denk laut* zeigt Überlegungen, *Scheitere* scheitert",
    },
    "lost": {
        "en": "I am not a real LLM and have no answer to that. Ask *What can you do?*",
        "de": "Ich bin kein echtes LLM und habe darauf keine Antwort. Frag *Was kannst du?*",
    },
    "thinking": {
        "en": "I search the {} messages that I was sent, and find these facts: {}.",
        "de": "Ich sehe die {} Nachrichten durch, die ich bekommen habe, und finde: {}.",
    },
    "nothing": {"en": "none", "de": "nichts"},
    "sent": {"en": "(Messages that I was sent: {}.)", "de": "(Nachrichten, die ich bekommen habe: {}.)"},
}
"""All of its texts."""

NOT_TAKEN = (AudioContent, VideoContent)

_GERMAN = re.compile(
    r"(?i)\b(?:ich|du|dir|meine?|mich|wie|wer|wo|was|ist|und|bitte|suche?|wetter|zähle|denk|uhr|hallo|guten)\b|[äöüß]"
)
_ENGLISH = re.compile(r"(?i)\b(?:i|you|my|me|how|who|where|what|the|and|please|search|weather|count|think|hello)\b")
_NUMBER = r"-?\d+(?:\.\d+)?"
_SUM = re.compile(rf"(?i){_NUMBER}(?:\s*(?:\+|plus)\s*{_NUMBER})+")
_TIME = re.compile(r"(?i)\bwhat(?:.s| is)? (?:the )?time\b|\bwie spät\b|\buhrzeit\b")
_WEATHER = re.compile(
    r"(?i)\b(?:weather|wetter)(?: like)? in (.+?)"
    r"(?=\s+(?:today|now|heute|jetzt)\b|[.;!?\n]|,? (?:and|und) (?:what|wie)\b|$)"
)
_SEARCH = re.compile(r"(?i)\b(?:search|look|suche?) (?:for|nach) (?:my |the |meine[mnr]? )?[\"“„]?([^.!?\n\"“”]+)")
_RECALL = re.compile(
    r"(?i)\b(?:did i (?:tell|ask) you|habe ich dir|hab ich dir)(?: earlier| before| früher)? "
    r"(?:about|über|von) (?:my |the |meine[mnr]? )?[\"“„]?([^.!?\n\"“”]+?)[\"“”]?"
    r"(?: (?:in|earlier|before|früher|erzählt|gesagt)\b[^?]*)?(?=[.!?\n]|$)"
)
_RENAME = re.compile(
    r"(?i)\b(?:call|name|nenne?) (?:this|diesen|dieses|diese) (?:chat|conversation|gespräch|unterhaltung) "
    r"[\"“„]?([^.!?\n\"“”]+)"
)
_COUNT = re.compile(r"(?i)\b(?:count to|zähle bis) (\d{1,3})\b")
_HELLO = re.compile(r"(?i)\s*(?:hello|hi|hey|good (?:morning|evening)|hallo|guten (?:morgen|tag|abend))\b")
_THINK = re.compile(r"(?i)\b(?:think|denk)\b")
_FAIL = re.compile(r"(?i)\s*(?:please )?(?:fail|scheitere)\W*")
_SELF = re.compile(r"(?i)\b(?:what can you do|who are you|help|was kannst du|wer bist du|hilfe)\b")


class Parrot(ChatModel):
    """
    A model that repeats facts from the messages. Equal messages always get the same answer, in English or German.

    Args:
        estimator: The estimator for the token usage that it reports.
        pause: Seconds between two words of a stream.

    """

    name = "parrot"

    def __init__(self, estimator: TokenCountEstimator, pause: float = 0.03) -> None:
        self.estimator = estimator
        self.pause = pause

    def do_chat(self, request: ChatRequest) -> ChatResponse:
        *_, response = self._events(request)
        assert isinstance(response, ChatResponse)  # noqa: S101  # for the type checker
        return response

    def do_stream(self, request: ChatRequest) -> Generator[ChatEvent, None, None]:
        for event in self._events(request):
            time.sleep(self.pause)
            yield event

    async def do_astream(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        for event in self._events(request):
            await asyncio.sleep(self.pause)
            yield event

    def _events(self, request: ChatRequest) -> Iterator[ChatEvent]:
        message = reply(request)
        for word in re.findall(r"\s*\S+", message.thinking or ""):
            yield PartialThinking(word)
        for word in re.findall(r"\s*\S+|\s+$", message.text or ""):
            yield PartialText(word)
        for index, call in enumerate(message.tool_execution_requests):
            yield PartialToolCall(index, call.id, call.name)
            for piece in re.findall(r"\s*\S+", call.arguments or ""):
                yield PartialToolCall(index, arguments=piece)
        calls = bool(message.tool_execution_requests)
        read = self.estimator.estimate_token_count_in_messages(request.messages)
        written = self.estimator.estimate_token_count_in_message(message)
        yield ChatResponse(
            message,
            ChatResponseMetadata(
                model_name=self.name,
                finish_reason=FinishReason.TOOL_EXECUTION if calls else FinishReason.STOP,
                token_usage=TokenUsage(read, written, read + written),
            ),
        )


def reply(request: ChatRequest) -> AiMessage:
    """
    Return the answer to *request*.

    Raises:
        InvalidRequestError: There is a sound or a video.
        UnavailableError: The user asks for an error.

    """
    if any(isinstance(content, NOT_TAKEN) for message in request.messages for content in contents_in(message)):
        raise InvalidRequestError("Parrot takes neither sounds nor videos.")
    asked, results = _last_turn(request.messages)
    text = "" if asked is None else text_of(asked)
    language: Language = "de" if len(_GERMAN.findall(text)) > len(_ENGLISH.findall(text)) else "en"
    if _FAIL.fullmatch(text) and not results:
        raise UnavailableError("Parrot failed, as it was asked to.")
    facts = facts_in(request.messages)
    thinking = None
    if _THINK.search(text) and not results:
        found = "; ".join(in_words(key, value, language) for key, value in facts.items())
        thinking = WORDS["thinking"][language].format(len(request.messages), found or WORDS["nothing"][language])
    calls = () if results else _calls(request, text)
    if calls:
        return AiMessage(None, thinking, calls)
    parts = [_result(result, language) for result in results] or _answers(asked, text, facts, language)
    parts.append(WORDS["sent"][language].format(len(request.messages)))
    return AiMessage("\n\n".join(parts), thinking)


def _last_turn(messages: Sequence[ChatMessage]) -> tuple[UserMessage | None, list[ToolExecutionResultMessage]]:
    """Return the user's last message, and the results of tools since then."""
    results: list[ToolExecutionResultMessage] = []
    for message in reversed(messages):
        if isinstance(message, UserMessage):
            return message, results[::-1]
        if isinstance(message, ToolExecutionResultMessage):
            results.append(message)
    return None, results[::-1]


def _answers(asked: UserMessage | None, text: str, facts: Facts, language: Language) -> list[str]:
    parts = []
    if asked is not None and any(isinstance(content, ImageContent) for content in asked.contents):
        parts.append(WORDS["image"][language])
    news = facts_in([UserMessage(text)])
    if news:
        clauses = [in_words(key, value, language) for key, value in news.items()]
        parts.append(WORDS["noted"][language].format("; ".join(clauses)))
    for key in questions_in(text):
        if key == EVERYTHING and facts:
            known = "\n".join(f"- {in_words(each, value, language)}" for each, value in facts.items())
            parts.append(f"{WORDS['all'][language]}\n\n{known}")
        elif key in facts:
            sentence = in_words(key, facts[key], language)
            parts.append(f"{sentence[0].upper()}{sentence[1:]}.")
        else:
            wanted = to_search_for("name" if key == EVERYTHING else key, language)
            parts.append(WORDS["unknown"][language].format(wanted))
    if count := _COUNT.search(text):
        parts.append(", ".join(map(str, range(1, int(count[1]) + 1))) + ".")
    if _SELF.search(text):
        parts.append(WORDS["self"][language])
    if not parts:
        parts.append(WORDS["hello" if _HELLO.match(text) else "lost"][language])
    return parts


def _result(result: ToolExecutionResultMessage, language: Language) -> str:
    text = text_of(result)
    if result.is_error:
        return WORDS["failed"][language].format(text)
    if result.tool_name != "search_conversations" or not text.endswith("}"):  # it may have been shortened
        return text
    return _recalled(json.loads(text)["messages"], language)


def _recalled(messages: Sequence[dict[str, Any]], language: Language) -> str:
    """Return a list of the quotations that a search of earlier conversations found."""
    if not messages:
        return WORDS["not recalled"][language]
    lines = [WORDS["recalled"][language], ""]
    for each in messages:
        who = WORDS["you" if each["by"] == "user" else "me"][language]
        lines.append(f"- {each['at'][:10]}, {who}: “{' '.join(each['quotation'].split())}”")
    return "\n".join(lines)


def _calls(request: ChatRequest, text: str) -> tuple[ToolExecutionRequest, ...]:
    """Return calls of the available tools that *text* asks for."""
    wanted: list[tuple[str, dict[str, Any]]] = []
    if _TIME.search(text):
        wanted.append(("get_time", {}))
    if weather := _WEATHER.search(text):
        cities = re.split(r",\s*|\s+(?:and|und)\s+(?:in\s+)?", weather[1].strip())
        wanted += [("get_weather", {"city": city.strip()}) for city in cities if city.strip()]
    wanted += [
        ("add", {"numbers": [float(number) for number in re.findall(_NUMBER, numbers)]})
        for numbers in _SUM.findall(text)
    ]
    if search := _SEARCH.search(text):
        wanted.append(("search_conversation", {"text": search[1].strip()}))
    if recalled := _RECALL.search(text):
        wanted.append(("search_conversations", {"query": recalled[1].strip()}))
    if rename := _RENAME.search(text):
        wanted.append(("rename_conversation", {"title": rename[1].strip()}))
    tools = () if request.tool_choice == ToolChoice.NONE else {tool.name for tool in request.tools}
    # The same id for the same messages, and different ids for different messages.
    digest = hashlib.sha256(messages_to_json(request.messages).encode(errors="replace")).hexdigest()[:12]
    return tuple(
        ToolExecutionRequest(f"call_{digest}_{number}", name, json.dumps(arguments, ensure_ascii=False))
        for number, (name, arguments) in enumerate(wanted)
        if name in tools
    )
