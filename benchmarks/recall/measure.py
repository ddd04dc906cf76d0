"""How many questions find their answers, by the way in which they are asked."""

from __future__ import annotations

import statistics
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from django.contrib.auth import get_user_model

from benchmarks.report import table
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Conversation, Message
from chatmemory_django.operations.searching import find_answers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from benchmarks.recall.people import Person, Place

    Search = Callable[[Any, str], Sequence[Place]]

FIRST = 5
"""How many hits a model reads."""

SMOOTH = 60
"""What is added to each place of a list before lists are fused by the reciprocals of places."""

BESIDE = 3
"""How far from a hit it reads."""

TYPES = (MessageType.USER, MessageType.AI)


def store(people: Iterable[Person], using: str = "default") -> list[tuple[Any, Person]]:
    """Store the conversations of *people*, and return these with their users."""
    stored = []
    for number, person in enumerate(people):
        user = get_user_model()._default_manager.db_manager(using).create(username=f"person-{number}")
        for place, written in enumerate(person.conversations, 1):
            conversation = Conversation.objects.using(using).create(
                memory_id=f"{number}:{place}", owner=user, next_sequence=len(written) + 1
            )
            Message.objects.using(using).bulk_create(
                [
                    Message(conversation=conversation, sequence=sequence, type=kind, text=text.replace("\0", ""))
                    for sequence, (kind, text) in enumerate(written, 1)
                ]
            )
        stored.append((user, person))
    return stored


def ways(using: str = "default") -> dict[str, Search]:
    """Return the ways to search: by all words, by any, and as a model's tool does."""
    messages, conversations = Message.objects.using(using), Conversation.objects.using(using)

    def places(found: Any) -> list[Place]:
        return [
            _place(memory_id, at) for memory_id, at in found.values_list("conversation__memory_id", "sequence")[:20]
        ]

    return {
        "all words": lambda user, text: places(messages.search(text, owner=user, types=TYPES)),
        "any of the words": lambda user, text: places(messages.search(text, owner=user, types=TYPES, match="any")),
        "the tool": lambda user, text: [
            _place(hit.memory_id, hit.sequence)
            for hit, *_ in find_answers(conversations.all(), text, owner=user, types=TYPES, stop=FIRST)
        ],
    }


def by_meaning(
    stored: Sequence[tuple[Any, Person]], embed: Callable[[list[str]], Any], by_words: Search
) -> dict[str, Search]:
    """Return the ways to search by vectors that *embed* makes of texts, and by these and *by_words* together."""
    import numpy as np

    def unit_vectors(texts: list[str]) -> Any:
        numbers = np.asarray(embed(texts), dtype=np.float32)
        return numbers / np.maximum(np.linalg.norm(numbers, axis=1, keepdims=True), 1e-9)

    known = {}
    for user, person in stored:
        written = [
            ((place, at), text)
            for place, each in enumerate(person.conversations, 1)
            for at, (_, text) in enumerate(each, 1)
        ]
        known[user.pk] = [place for place, _ in written], unit_vectors([text for _, text in written])

    def nearest(user: Any, text: str) -> list[Place]:
        places, vectors = known[user.pk]
        return [places[each] for each in np.argsort(-(vectors @ unit_vectors([text])[0]))[:20]]

    def fused(user: Any, text: str) -> list[Place]:
        points: Counter[Place] = Counter()
        for found in (by_words(user, text), nearest(user, text)):
            points.update({place: 1 / (SMOOTH + number) for number, place in enumerate(found, 1)})
        return [place for place, _ in points.most_common(20)]

    return {"vectors": nearest, "words and vectors": fused}


def measured(stored: Sequence[tuple[Any, Person]], searches: dict[str, Search]) -> str:
    """
    Return a table of how many questions find an answer among the first hits, where answers are known, and how long they
    take.
    """
    heads = ["is first", f"among {FIRST}", "among 10", f"within {BESIDE} of {FIRST}", "nothing found"]
    are_known = any(answers for _, person in stored for _, answers in person.questions)
    rows = []
    for name, search in searches.items():
        found: defaultdict[str, list[bool]] = defaultdict(list)
        times, own_times = [], []
        for user, person in stored:
            for question, answers in person.questions:
                begun, own_begun = time.perf_counter(), time.thread_time()
                places = search(user, question)
                times.append(time.perf_counter() - begun)
                own_times.append(time.thread_time() - own_begun)
                for count in (1, FIRST, 10):
                    found[f"{count}"].append(bool(answers & {*places[:count]}))
                found["near"].append(is_near(places[:FIRST], answers))
                found["none"].append(not places)
        shares = [f"{100 * statistics.mean(found[each]):.1f} %" for each in ("1", f"{FIRST}", "10", "near", "none")]
        if name == "the tool":
            shares[2] = ""  # it returns no more
        took = statistics.median(times), statistics.quantiles(times, n=20)[-1], statistics.median(own_times)
        rows.append([name, *(shares if are_known else ()), *(f"{1000 * each:.1f}" for each in took)])
    count = sum(len(person.questions) for _, person in stored)
    return table([f"{count:,} questions", *(heads if are_known else ()), "ms", "ms, 95 %", "own ms"], rows)


def is_near(places: Sequence[Place], answers: set[Place]) -> bool:
    """Return whether a model reads one of *answers* that reads around each of *places*."""
    return any((place, at + offset) in answers for place, at in places for offset in range(-BESIDE, BESIDE + 1))


def _place(memory_id: str, sequence: int) -> Place:
    return int(memory_id.partition(":")[2]), sequence
