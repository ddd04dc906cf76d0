"""
Who asks what of which earlier conversations: a set of our own, or a file of LoCoMo or LongMemEval.

Neither of these may be shipped. LoCoMo is ``locomo10.json`` of snap-research/locomo, or the same list of files as they
are in its archive; LongMemEval is ``longmemeval_s.json`` or another of its files.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

OWN = Path(__file__).parents[2] / "tests" / "data" / "recall.json"
"""Facts, and questions about them in other words, in several languages, among chatter. It is written for this."""

CONVERSATIONS, LENGTH = 12, 20
"""How many conversations a person of our own set has, and how many messages of chatter each of them."""

NO_ANSWER = 5
"""The category of LoCoMo's questions that nothing answers."""

Place: TypeAlias = tuple[int, int]
"""A conversation of a person, and a message in it, both counted from 1."""


@dataclass
class Person:
    """Who wrote the conversations, each of them pairs of type and text, and asks the questions."""

    name: str
    conversations: list[list[tuple[str, str]]] = field(default_factory=list)
    questions: list[tuple[str, set[Place]]] = field(default_factory=list)
    """Each with the messages that answer it."""


def people(path: Path = OWN) -> Iterator[Person]:
    """Yield the people in the file at *path*."""
    data = json.loads(path.read_text("utf-8"))
    if isinstance(data, dict):
        yield from map(_own, data["people"])
    elif all("qa" in each for each in data):
        yield from map(_of_locomo, data)
    elif all("haystack_sessions" in each for each in data):
        yield from map(_of_longmemeval, data)
    else:
        raise ValueError(f"{path} has neither the form of LoCoMo nor that of LongMemEval.")


def as_one(all_people: list[Person], count: int, length: int = 10) -> Person:
    """
    Return one person with *count* conversations of *length* messages, who repeats what all of them wrote,
    and asks what they ask. What answers a question is not known then.
    """
    written = [message for person in all_people for conversation in person.conversations for message in conversation]
    endless = cycle(written)
    conversations = [list(islice(endless, length)) for _ in range(count)]
    asked = [(question, set[Place]()) for person in all_people for question, _ in person.questions]
    return Person("everyone", conversations, asked)


def _own(described: dict[str, Any]) -> Person:
    """Return a person whose facts are among chatter, and who has asked every other question before, in vain."""
    chance = random.Random(described["language"])
    openings, endings = described["chatter"]
    types = ("USER", "AI")
    person = Person(described["language"])
    person.conversations = [
        [(types[number % 2], f"{chance.choice(openings)} {chance.choice(endings)}") for number in range(LENGTH)]
        for _ in range(CONVERSATIONS)
    ]
    for number, (fact, question) in enumerate(described["facts"]):
        conversation = person.conversations[number % CONVERSATIONS]
        conversation += [("USER", fact), ("AI", chance.choice(endings))]
        person.questions.append((question, {(number % CONVERSATIONS + 1, len(conversation) - 1)}))
    for number, (question, _) in enumerate(person.questions):
        if number % 2:
            asked = person.conversations[(number + 5) % CONVERSATIONS]
            asked += [("USER", question), ("AI", described["unknown"])]
    return person


def _of_locomo(sample: dict[str, Any]) -> Person:
    written = sample.get("conversation", sample)
    person = Person(str(sample.get("sample_id", written["speaker_a"])))
    places: dict[str, Place] = {}
    numbers = sorted(int(name[8:]) for name in written if re.fullmatch(r"session_\d+", name))
    for conversation, number in enumerate(numbers, 1):
        turns = written[f"session_{number}"]
        places |= {turn["dia_id"]: (conversation, sequence) for sequence, turn in enumerate(turns, 1)}
        types = {written["speaker_a"]: "USER", written["speaker_b"]: "AI"}
        person.conversations.append([(types[turn["speaker"]], turn["text"]) for turn in turns])
    for each in sample["qa"]:
        named = re.findall(r"D\d+:\d+", " ".join(each.get("evidence", ())))
        if each["category"] != NO_ANSWER and (answers := {places[name] for name in named if name in places}):
            person.questions.append((each["question"], answers))
    return person


def _of_longmemeval(sample: dict[str, Any]) -> Person:
    person = Person(sample["question_id"])
    answers: set[Place] = set()
    sessions = zip(sample["haystack_session_ids"], sample["haystack_sessions"], strict=True)
    for conversation, (name, turns) in enumerate(sessions, 1):
        person.conversations.append([("USER" if each["role"] == "user" else "AI", each["content"]) for each in turns])
        if name in sample["answer_session_ids"]:
            are_marked = any(each.get("has_answer") for each in turns)
            places = enumerate(turns, 1)
            answers |= {(conversation, at) for at, each in places if each.get("has_answer") or not are_marked}
    if answers:
        person.questions.append((sample["question"], answers))
    return person
