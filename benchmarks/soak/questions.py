"""Conditions that one of the states of a conversation must meet that were current while a worker did something."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmarks.soak.records import digest
from benchmarks.soak.reference import WINDOWS
from benchmarks.soak.verbs import labels

if TYPE_CHECKING:
    from benchmarks.soak.records import Intent, Seen
    from benchmarks.soak.reference import Reference
    from benchmarks.soak.replay import Story


def is_done(intent: Intent, answer: list[int]) -> Callable[[Reference], bool] | None:
    """Return what holds once *intent* was done with *answer*; None where the judge checks otherwise."""
    match intent.kind:
        case "rewind":
            return lambda reference: reference.place() == (intent.to or 0)
        case "switch":
            return lambda reference: reference.place() == answer[0]
        case "evict":
            evicted = set(answer)
            return lambda reference: not evicted & set(reference.memory())
        case "pop" if answer:
            return lambda reference: answer[0] not in map(digest, labels(reference.without_summary()))
        case "pop":
            return lambda reference: reference.newest_in_memory() is None
        case "remove":
            out = set(answer)
            return lambda reference: not out & reference.messages.keys()
        case "pin" if answer:
            return lambda reference: reference.pins.issuperset(answer)
        case "pin":
            to = intent.to or 0  # a message that has gone, or that the path has left, is refused in another way
            return lambda reference: to in reference.path() and not reference.can_pin(to, WINDOWS[intent.window])
        case "unpin":
            return lambda reference: reference.pins.isdisjoint(answer)
        case "summarize":
            label = f"{intent.verb}/0.0"
            return lambda reference: (reference.labelled(label) is not None) == bool(answer[0])
    return None


def is_copied_as(intent: Intent, story: Story) -> Callable[[Reference], bool]:
    """Return whether *story* is a copy by *intent*: of the memory and the path."""
    copied = labels(story.messages(len(story.states))), labels(story.path())
    through = intent.to if intent.kind == "fork" else None

    def holds(reference: Reference) -> bool:
        if through is not None and not reference.has_message(through):
            return False
        forked = reference.forked(through, WINDOWS[intent.window])
        return (labels(forked.memory_messages()), labels(forked.path_messages())) == copied

    return holds


def is_absent(intent: Intent, reference: Reference) -> bool:
    """Return whether a message that *intent* names is missing."""
    to = intent.to or 0
    if intent.kind == "remove":
        return to == 0 or not (reference.has_message(to) or to in reference.memory())
    if intent.kind in {"pin", "unpin"} and (to == 0 or (intent.kind == "pin" and to not in reference.path())):
        return True
    is_aside_removed = intent.kind == "turn" and f"{intent.verb}/0.0" in reference.removed
    return is_aside_removed or not reference.has_message(to)


def is_seen(seen: Seen, reference: Reference) -> bool:
    """Return whether a turn that continues from an earlier message sees that memory."""
    to = seen.rewound_to or 0
    if not reference.has_message(to):
        return False
    return labels(reference.seen(WINDOWS[seen.window], to).memory_messages()) == seen.labels
