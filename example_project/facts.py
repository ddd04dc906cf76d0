"""Facts that users state about themselves, in plain English or German: extraction, sentences and summaries."""

import re
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple, TypeAlias

from chatmemory_django.messages import (
    AiMessage,
    ChatMessage,
    SystemMessage,
    TextContent,
    ToolExecutionResultMessage,
    UserMessage,
)

Language: TypeAlias = Literal["en", "de"]
Facts: TypeAlias = dict[str, str]
"""The known facts, the latest last: *name*, *home*, *age*, *likes*, *note*, or any thing that the user named."""

EVERYTHING = "*"
"""The question for all facts, such as "What do you know about me?"."""

_END = r"(?=[.,;!?\n]|\s+(?:and|but|und|aber)\s+(?:i|my|ich|meine?|what|was|how|wie)\b|$)"
_VALUE = rf"[\"“„]?(?P<value>[^.,;!?\n\"“”]{{1,60}}?)[\"”“]?{_END}"
_THING = r"(?P<thing>[^\W\d_][\w' -]{0,29}?)"

_PHRASES = (
    (r"\b(?:<my> name is|<I> <am> called)\s+", "name"),
    (r"\b(?:<mein> name ist|<ich> hei(?:ß|ss)[et])\s+", "name"),
    (r"\b<I> live in\s+", "home"),
    (r"\b<ich> (?:wohn|leb)(?:e|st) in\s+", "home"),
    (r"\b<I> <am> (?=\d+ years old)", "age"),
    (r"\b<ich> <bin> (?=\d+ Jahre alt)", "age"),
    (r"\b<I> (?:like|love)\s+", "likes"),
    (r"\b<ich> (?:mag|magst|liebe|liebst)\s+", "likes"),
    (r"\b(?:remember(?: that|:)?|merk dir(?:, dass|:)?)\s+", "note"),
    (rf"\b<my> {_THING} (?:is called|is|are)\s+", None),
    (rf"\b<mein> {_THING} (?:hei(?:ß|ss)t|ist|sind)\s+", None),
)
"""The phrases that introduce a fact, and its key; None if the phrase contains the key."""


def _patterns_for(**words: str) -> list[tuple[re.Pattern[str], str | None]]:
    """Return the patterns of ``_PHRASES`` with these words for "I" and "my"."""
    patterns = []
    for pattern, key in _PHRASES:
        for place, word in words.items():
            pattern = pattern.replace(f"<{place}>", word)
        patterns.append((re.compile(pattern + _VALUE, re.IGNORECASE), key))
    return patterns


_USER = _patterns_for(my="my", I="i", am="am", mein="meine?", ich="ich", bin="bin")
_AI = _patterns_for(my="your", I="you", am="are", mein="deine?", ich="du", bin="bist")

_ASKED = (
    (r"\b(?:what(?:.s| is) my name|what am i called|who am i)\b", "name"),
    (r"\b(?:wie hei(?:ß|ss)e ich|wie ist mein name|wer bin ich)\b", "name"),
    (r"\bwhere do i live\b|\bwo (?:wohne|lebe) ich\b", "home"),
    (r"\bhow old am i\b|\bwie alt bin ich\b", "age"),
    (r"\bwhat do i (?:like|love)\b|\bwas (?:mag|liebe) ich\b", "likes"),
    (r"\bwhat did i ask you to remember\b|\bwas solltest du dir merken\b", "note"),
    (r"\bwhat do you (?:know|remember)\b|\bwas wei(?:ß|ss)t du\b", EVERYTHING),
    (rf"\b(?:what(?:.s| is| are)|who is) my {_THING}(?: called)?(?=[?.!]|$)", None),
    (rf"\b(?:wie hei(?:ß|ss)t|was ist|wer ist) meine? {_THING}(?=[?.!]|$)", None),
)

_SENTENCES = {
    "name": {"en": "your name is {}", "de": "dein Name ist {}"},
    "home": {"en": "you live in {}", "de": "du wohnst in {}"},
    "age": {"en": "you are {}", "de": "du bist {}"},
    "likes": {"en": "you like {}", "de": "du magst {}"},
    "note": {"en": "I should remember {}", "de": "ich soll mir merken: {}"},
}
_SEARCHED = {
    "name": {"en": "my name is", "de": "heiße"},
    "home": {"en": "I live in", "de": "wohne"},
    "age": {"en": "years old", "de": "Jahre alt"},
    "likes": {"en": "I like", "de": "ich mag"},
    "note": {"en": "remember", "de": "merk dir"},
}
_SUMMARY = re.compile(r"Summary of earlier messages \((\d+)\): (.*)", re.DOTALL)


class Summary(NamedTuple):
    """A summary of *covered* messages, with their facts."""

    covered: int
    facts: Facts

    @property
    def text(self) -> str:
        """The summary as text, which ``read_summary`` can read."""
        known = "; ".join(f"{key} = {value}" for key, value in self.facts.items())
        return f"Summary of earlier messages ({self.covered}): {known or 'nothing to remember'}."


def read_summary(text: str) -> Summary | None:
    """Return the summary in *text*, or None if it is not a summary."""
    match = _SUMMARY.fullmatch(text)
    if match is None:
        return None
    pairs = (pair.partition(" = ") for pair in match[2].removesuffix(".").split("; "))
    return Summary(int(match[1]), {key: value for key, equals, value in pairs if equals})


def summarize(previous: str | None, messages: Iterable[ChatMessage]) -> Summary:
    """Return the facts in *previous*, a summary, and in *messages*."""
    all_messages = list(messages)
    before = None if previous is None else read_summary(previous)
    covered = len(all_messages) + (0 if before is None else before.covered)
    return Summary(covered, facts_in([*([] if previous is None else [SystemMessage(previous)]), *all_messages]))


def facts_in(messages: Iterable[ChatMessage]) -> Facts:
    """Return the facts about the user in *messages*; of two values, the later one counts."""
    found: Facts = {}
    for message in messages:
        for key, value in _facts_of(message):
            known = found.pop(key, "")
            is_list = key in {"likes", "note"} and known and value not in known.split(", ")
            found[key] = f"{known}, {value}" if is_list else known if value in known.split(", ") else value
    return found


def questions_in(text: str) -> list[str]:
    """Return what *text* asks for: keys of ``Facts``, or ``EVERYTHING``."""
    asked = [
        (match.start(), key or _key(match["thing"]))
        for pattern, key in _ASKED
        for match in re.finditer(pattern, text, re.IGNORECASE)
    ]
    places: dict[int, str] = {}
    for place, key in asked:
        places.setdefault(place, key)  # "my name" must not also be read as a thing
    return [key for _, key in sorted(places.items())]


def in_words(key: str, value: str, language: Language) -> str:
    """Return a fact as a clause, for example "your name is Ada"."""
    if key in _SENTENCES:
        return _SENTENCES[key][language].format(value)
    return f"your {key} is {value}" if language == "en" else f"zu „{key}“ weiß ich: {value}"


def to_search_for(key: str, language: Language) -> str:
    """Return words that a message with this fact contains."""
    return _SEARCHED[key][language] if key in _SEARCHED else key


def text_of(message: ChatMessage) -> str:
    """Return the texts of *message*, without images and other files."""
    match message:
        case UserMessage() | ToolExecutionResultMessage():
            return "\n".join(content.text for content in message.contents if isinstance(content, TextContent))
        case SystemMessage():
            return message.text
        case AiMessage():
            return message.text or ""
        case _:
            return ""


def _facts_of(message: ChatMessage) -> Iterator[tuple[str, str]]:
    text = text_of(message)
    if isinstance(message, SystemMessage):
        summary = read_summary(text)
        yield from () if summary is None else summary.facts.items()
        return
    # The results of a search contain messages of both.
    speakers = {UserMessage: (_USER,), AiMessage: (_AI,)}.get(type(message), (_USER, _AI))
    for sentence in re.findall(r"[^.!?\n]+[.!?\n]?", text):
        if not sentence.endswith("?"):
            for patterns in speakers:
                yield from _facts_in_sentence(sentence, patterns)


def _facts_in_sentence(sentence: str, patterns: list[tuple[re.Pattern[str], str | None]]) -> Iterator[tuple[str, str]]:
    taken: set[int] = set()
    for pattern, key in patterns:
        for match in pattern.finditer(sentence):
            if match.start() not in taken:
                taken.add(match.start())
                yield key or _key(match["thing"]), match["value"].strip()


def _key(thing: str) -> str:
    return " ".join(thing.lower().split())
