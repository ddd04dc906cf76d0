"""
How well messages answer a question of which they have some words: the same for every database.

The idea is that of BM25: a word weighs the more the fewer messages have it, repeating it adds little, and in a long
message it weighs less. Words are compared by their beginnings, so that most inflections and compounds are the same
word; where scripts have no spaces between words, pairs of characters stand for them.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from math import log
from typing import TypeAlias

from chatmemory_django.core.excerpts import MAX_SEARCH

Key: TypeAlias = tuple[int, int]
"""The primary key of a message: its conversation and its sequence."""

MAX_WORDS = 24
"""How many words of a question, or pairs of characters, are used."""

RARE = 3
"""How many of the rarest words are looked for beyond the messages that are read."""

REPEATED = 0.5
"""How much the repetition of a word adds: BM25's k1. Messages are short, so it is less than documents have."""

LENGTH = 0.3
"""How much the length of a message matters, from 0 to 1: BM25's b."""

INFLECTED, INSIDE = 0.8, 0.5
"""What a word with the same beginning weighs, and one that is part of a compound, where the word itself weighs 1."""

LONG, TOO_LONG = 10, 64
"""How many letters a word has at least, and at most, that may be a compound: each letter is the end of a part."""

NEIGHBOUR = 0.2
"""
Which part of its weight a message gives to each of its neighbours that weigh anything, and one that only asks to the
next one, its answer, if that weighs anything or not.
"""

ASKS = 0.15
"""Which part of its weight a message keeps that only asks: less than it gives to its answer."""

_MARKS = "\u0300-\u036f"
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
# The vowel signs and other marks of Hebrew, Arabic and the scripts of India are not letters to ``\w``.
_WORD = re.compile(rf"[{_UNSPACED}]+|[^\W_{_UNSPACED}](?:[^\W_{_UNSPACED}]|[\u0591-\u05c7\u064b-\u065f\u0900-\u0dff])*")
# A question mark of any script, or the word that ends a question in Chinese and Japanese.
_ONLY_ASKS = re.compile(
    "[^.!?\u3002\uff01\uff1f\u061f]+[?\uff1f\u061f]\\W*|[^.!?\u3002\uff01\uff1f]+[\u5417\u55ce\u5462\u304b][\u3002\uff1f]?"
)

_COMMON = frozenset(
    re.findall(
        r"\w+",
        """
        a about after all also am an and any are as at be because been before being but by can could did do does doing
        during for from had has have he her here him his how i if in into is it its just kind many me more most much
        my no not of on or our out over s she so some t than that the their them then there these they this those to
        type up us was we were what when where which who whom whose why will with would you your
        als auf aus bei bin bist da das dem den denn der des die dir doch du ein eine einem einen einer es für hab
        habe haben hast hat hatte ich ihr im ist ja kann man mein meine meinem meinen meiner mich mir mit nach nicht
        noch nur oder sie sind und uns unser viel viele vom von vor wann war waren warum welche welchem welchen
        welcher welches wem wen wer wie wir wird wo wurde zu zum zur
        au aux avec ce de la en ces cette dans du elle en est et il je le les leur ma mais mes moi mon nos notre nous où
        ou par pas pour qu quand que quel quelle quelles quels qui sa ses sur tu un une vous
        al como con cual cuando donde e el ella era esta este fue ha hay las lo los mi para pero por se ser si sin su
        sus te tiene y yo
        che chi dal della di dove gli ho mia mio nel non più qual quale quali quando quanto quello sono
        com dos em eu foi meu minha na não o onde os são sua um uma você
        aan dat een het hoe ik je mijn naar niet op van voor waar wat welke wie zijn
        """,
    )
)
"""
Words that most questions have, and that find no answers: in English, German, French, Spanish, Italian, Portuguese and
Dutch, unless they are words of their own in another of these.
"""

Written: TypeAlias = tuple[int, int, str]
"""A message as it is weighed: its conversation, its sequence and its text."""


def only_asks(text: str) -> bool:
    """Return whether *text* is one question and nothing else, so that it answers none."""
    return _ONLY_ASKS.fullmatch(text.strip()) is not None


def words_of(question: str) -> list[str]:
    """
    Return the words by which *question* is answered. Of scripts without spaces, they are pairs of characters.

    Very common words are left out unless there are no others.
    """
    found: dict[str, None] = {}
    for run in _WORD.findall(question[:MAX_SEARCH].casefold()):
        if _is_unspaced(run):
            found |= dict.fromkeys(run[at : at + 2] for at in range(max(1, len(run) - 1)))
        else:
            found[run] = None
    return ([word for word in found if word not in _COMMON] or list(found))[:MAX_WORDS]


def beginning_of(word: str) -> str:
    """Return by which beginning *word* is compared: long enough to be that word, short enough for its inflections."""
    return word if len(word) < 4 or _is_unspaced(word) else word[: max(4, len(word) - 3)]


class Weighing:
    """The weights of messages for a question. How rare a word is, is known from those of *written*."""

    def __init__(self, question: str, written: Sequence[Written]) -> None:
        """*written* is in the order of conversations and sequences, so that neighbours follow each other."""
        self.words = words_of(question)
        # A letter can stand for a word, or have brackets, when it is folded.
        parts = (_Parts(folded) for word in self.words if LONG <= len(folded := _folded(word)) <= TOO_LONG)
        self._sought: list[_Word | _Parts] = [*map(_Word, self.words), *parts]
        self._written = _Counted(self._sought, written)
        self._rarity = [_rarity(len(written), len(found)) for found in self._written.found]

    def rarest(self) -> list[str]:
        """Return the beginnings of up to ``RARE`` words that fewer than one in 100 messages has, for an index."""
        words = sorted(zip(self._rarity, self.words, strict=False), key=lambda each: -each[0])
        least = _rarity(len(self._written.lengths), len(self._written.lengths) / 100)
        rare = [word for rarity, word in words if rarity > least and len(word) > 2 and word not in _COMMON]
        return [beginning_of(word) for word in rare[:RARE]]

    def best(self, most: int, beyond: Sequence[Written] = ()) -> dict[Key, float]:
        """Return the weights of the best messages, at most so many, best first, of *written* and of those *beyond*."""
        weights = _Counted(self._sought, beyond).weights(self._rarity) | self._written.weights(self._rarity)
        ranked = sorted(weights.items(), key=lambda each: (each[1], each[0]), reverse=True)
        return dict(ranked[:most])


class _Word:
    """A word of a question, and how it is found in a text."""

    def __init__(self, word: str) -> None:
        self._word = _folded(word)
        self._beginning = beginning_of(self._word)
        ending = r"\w*" if len(self._beginning) >= 4 else r"(?!\w)"
        self._pattern = re.compile(rf"(?<!\w){re.escape(self._beginning)}{ending}")
        self._is_pair = _is_unspaced(word)
        # In scripts without capitals, articles and the like are often written as a part of the word.
        has_no_case = word.upper() == word.lower() and not word.isdecimal()
        self._is_sought_inside = len(self._beginning) >= (3 if has_no_case else 5)

    def times(self, text: str) -> float:
        """Return how often *text* has the word; an inflected one, or one inside of a compound, counts less."""
        if self._beginning not in text:
            return 0.0
        if self._is_pair:
            return text.count(self._beginning)
        found = self._pattern.findall(text)
        inside = INSIDE if self._is_sought_inside else 0.0
        return sum(1.0 if each == self._word else INFLECTED for each in found) or inside


class _Parts:
    """What a long word may be a compound of: "Schloss" and "Fahrrad" for "Fahrradschloss"."""

    def __init__(self, word: str) -> None:
        heads = (word[:length] for length in range(6, len(word) - 3))
        tails = (word[start : max(start + 5, len(word) - 2)] for start in range(4, len(word) - 4))
        head, tail = ("|".join(map(re.escape, each)) for each in (heads, tails))
        self._pattern = re.compile(rf"(?<!\w)(?:(?:{head})(?!\w)|(?:{tail})\w{{0,4}}(?!\w))")
        # One of these is in each part. Most texts have none, which is found out in a tenth of the time.
        self._pieces = {word[:6], word[-7:-2], word[-6:-1], word[-5:]}

    def times(self, text: str) -> float:
        """Return what a part of the word in *text* counts, however often it is there."""
        has_any = any(each in text for each in self._pieces)
        return INSIDE if has_any and self._pattern.search(text) else 0.0


class _Counted:
    """Messages, by their places, in which the words of a question were counted."""

    def __init__(self, sought: Sequence[_Word | _Parts], written: Sequence[Written]) -> None:
        self._written = written
        texts = [_folded(text)[: 2 * len(text) + LONG] for _, _, text in written]  # a letter may be folded to 18
        self.lengths = list(map(len, texts))
        counted = ((each.times(text) for text in texts) for each in sought)
        self.found = [{place: times for place, times in enumerate(each) if times} for each in counted]

    def weights(self, rarity: Sequence[float]) -> dict[Key, float]:
        """Return what each message with any of the words weighs."""
        average = sum(self.lengths) / len(self.lengths) if self._written else 1
        own: defaultdict[int, float] = defaultdict(float)
        for weight, found in zip(rarity, self.found, strict=True):
            for place, times in found.items():
                longer = REPEATED * (1 - LENGTH + LENGTH * self.lengths[place] / average)
                own[place] += weight * times * (REPEATED + 1) / (times + longer)
        total: defaultdict[Key, float] = defaultdict(float)
        for place, weight in own.items():
            conversation, sequence, text = self._written[place]
            asks = only_asks(text)
            total[conversation, sequence] += weight * (ASKS if asks else 1)
            for beside in (place - 1, place + 1):
                is_there = 0 <= beside < len(self._written) and self._written[beside][0] == conversation
                if is_there and (beside in own or (asks and beside > place)):
                    total[self._written[beside][:2]] += weight * NEIGHBOUR
        return total


def _rarity(all_of_them: int, those_with_it: float) -> float:
    """Return the weight of a word; next to nothing if every message has it."""
    return max(0.05, log((1 + all_of_them / (those_with_it + 0.5)) / 2))


def _is_unspaced(word: str) -> bool:
    return re.match(f"[{_UNSPACED}]", word) is not None


def _folded(text: str) -> str:
    """Return *text* as it is compared: without the case, the accents and the width of letters."""
    folded = text.casefold()
    if folded.isascii():
        return folded
    return unicodedata.normalize("NFC", re.sub(f"[{_MARKS}]", "", unicodedata.normalize("NFKD", folded)))
