"""
What a soak came to: the states that the database wrote down, replayed in plain Python, beside what workers were told.

A state must follow from the one before it by one verb that somebody had begun by then and did not see end before. Of an
add or a turn, its rows tell which verb it was, and the windows' rules what must then be in the memory, row by row. A
set is known by the memory that it makes, a clear by an empty one; where nothing but counters change, somebody must have
recounted or renamed. Who was told that a verb was done must find it between the versions before and after it.
"""

from __future__ import annotations

import datetime
import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from django.utils import timezone

from benchmarks.soak.errors import CONNECTION, DEADLOCK, LOST_TRANSACTION, SERIALIZATION
from benchmarks.soak.records import ESTIMATORS, WINDOWS, Fault, Intent, Outcome, Seen, Told, label_of, part_of
from benchmarks.soak.triggers import written
from benchmarks.soak.verbs import labels
from chatmemory_django.codec import messages_from_json
from chatmemory_django.models import Conversation, Message
from chatmemory_django.rows import to_message
from chatmemory_django.windows import Eviction

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.soak.records import Record
    from chatmemory_django.messages import ChatMessage

EXAMPLES = 5
"""How many of each kind of finding are told."""

NEVER = (
    "lost",
    "doubled",
    "undone, yet there",
    "half written",
    "no effect",
    "wrong answer",
    "unexplained state",
    "wrong counters",
    "torn read",
    "told of what is not there",
    "erased too early",
    "wrong rows",
    "unexpected error",
    "crash",
    "finding of the check",
)
"""What must not happen, not once."""


class State(NamedTuple):
    """A conversation as a write left it."""

    conversation: int
    memory_id: str
    version: int
    next_sequence: int
    window_start: int
    pinned_sequence: int | None
    memory_messages: int
    memory_tokens: int
    counted_by: str


class Row(NamedTuple):
    """A message that was stored."""

    message: ChatMessage
    label: str
    part: str
    """The part of a verb that it was said in."""
    in_history: bool


@dataclass
class Story:
    """A conversation from when it was made to when it was erased, or now."""

    states: list[State]
    rows: dict[int, Row]
    superseded: dict[int, int]
    """By sequence, the version since when."""
    memories: dict[int, list[int]] = field(default_factory=dict)
    """By version, the sequences in the memory."""
    gone: set[int] = field(default_factory=set)
    """The sequences of the rows that are no longer kept."""
    client_ids: set[str] = field(default_factory=set)
    rewritten: set[int] = field(default_factory=set)
    """The sequences of the rows that a set wrote; it may say again what was said before."""

    @property
    def name(self) -> str:
        return self.states[0].memory_id

    def messages(self, version: int) -> list[ChatMessage]:
        return [self.rows[sequence].message for sequence in self.memories[version]]

    def memory(self, state: State) -> list[int]:
        """What is in the memory by what the database wrote down."""
        pinned = state.pinned_sequence
        window = [
            sequence
            for sequence in range(state.window_start, state.next_sequence)
            if sequence in self.rows and sequence != pinned and self.superseded.get(sequence, 10**9) > state.version
        ]
        return window if pinned is None else [pinned, *window]


class Judge:
    """Looks at what *records* and the database *using* say, and counts what must not be."""

    def __init__(self, using: str, records: Sequence[Record], *, disturbed: bool) -> None:
        self.using = using
        self.disturbed = disturbed
        self.intents = [record for record in records if isinstance(record, Intent)]
        self.outcomes = {record.id: record for record in records if isinstance(record, Outcome)}
        self.faults = [record for record in records if isinstance(record, Fault)]
        self.seen = [record for record in records if isinstance(record, Seen)]
        self.told = [record for record in records if isinstance(record, Told)]
        self.tried_once = {intent.id for intent in self.intents if intent.kind in {"title", "copy"}}
        self.findings: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = defaultdict(list)
        self.dirty_reads = 0
        self.acknowledged = 0
        """How many messages were."""
        self._load()

    def judge(self) -> None:
        """Look at everything."""
        for key, story in self.stories.items():
            self._replay(key, story)
        for attempts in self.by_verb.values():
            for part in range(len(attempts[0].parts)):
                if attempts[0].kind in {"add", "turn"}:
                    self._judge_said(attempts, part)
        for intent in self.intents:
            if self._state(intent, 0) == "acknowledged":
                self._judge_effect(intent)
        for seen in self.seen:
            self._judge_read(seen)
        self._judge_told()
        self._judge_erased()
        self._judge_rows()
        self._judge_errors()

    def find(self, what: str, *details: object) -> None:
        """Count *what*, which must not be."""
        self.findings[what] += 1
        if len(self.examples[what]) < EXAMPLES:
            self.examples[what].append(" ".join(map(str, details)))

    def errors(self) -> Counter[str]:
        """How many errors of each kind there were that a soak brings with it."""
        return Counter(fault.kind for fault in self.faults if self._is_allowed(fault))

    def _load(self) -> None:
        self.by_verb: dict[str, list[Intent]] = defaultdict(list)
        self.by_kind: dict[tuple[str, str], list[Intent]] = defaultdict(list)
        self.by_memory: dict[tuple[str, tuple[str, ...]], list[Intent]] = defaultdict(list)
        for intent in self.intents:
            self.by_verb[intent.verb].append(intent)
            self.by_kind[intent.conversation, intent.kind].append(intent)
            if intent.kind == "set":
                self.by_memory[intent.conversation, self._memory_set(intent)].append(intent)
        states: dict[int, list[State]] = defaultdict(list)
        # An UPDATE that changes nothing is how one takes a lock where there is no SELECT … FOR UPDATE.
        for values in dict.fromkeys(written(self.using, "soak_state")):
            state = State(*values)
            states[state.conversation].append(state)
        rows: dict[int, dict[int, Row]] = defaultdict(dict)
        self.places: dict[str, list[tuple[int, int]]] = defaultdict(list)
        """By label, the conversation and the sequence of each row of a history."""
        superseded: dict[int, dict[int, int]] = defaultdict(dict)
        for key, sequence, kind, text, payload, metadata, in_history, is_superseded in written(self.using, "soak_row"):
            if is_superseded:
                superseded[key][sequence] = 0  # it never was in the memory
            label = label_of(text)
            part = json.loads(metadata)["by"] if metadata else part_of(label)
            rows[key][sequence] = Row(to_message(kind, text, payload), label, part, bool(in_history))
            if in_history and part == part_of(label):  # else somebody said again what was said before
                self.places[label].append((key, sequence))
        self.erased = {key: _aware(updated_at) for key, updated_at in written(self.using, "soak_erased")}
        for key, sequence, version, is_deleted in written(self.using, "soak_superseded"):
            if not is_deleted or key not in self.erased:  # else it went with its conversation
                superseded[key].setdefault(sequence, version)
        self.stories = {
            key: Story(sorted(found, key=lambda state: state.version), rows[key], superseded[key])
            for key, found in sorted(states.items())
        }
        self.by_name: dict[str, list[int]] = defaultdict(list)
        for key, story in self.stories.items():
            self.by_name[story.name].append(key)

    # The replay

    def _replay(self, key: int, story: Story) -> None:
        before = story.states[0]._replace(version=0, next_sequence=1)
        story.memories[0] = []
        is_copy = story.name.startswith("copy")
        for version, state in enumerate(story.states, start=1):
            if state.version != version and not is_copy:
                self.find("unexplained state", f"{story.name} ({key}): version {state.version} is number {version}.")
            state = state._replace(version=version)  # an import writes more than once before anybody sees it
            if not is_copy and not self._is_explained(key, story, before, state):
                new = range(before.next_sequence, state.next_sequence)
                was, said, now = (
                    [story.rows[sequence].label if sequence in story.rows else "?" for sequence in sequences]
                    for sequences in (story.memories[before.version], new, story.memory(state))
                )
                self.find("unexplained state", f"{story.name} ({key}) version {version}: {was} + {said} became {now}.")
            story.memories[version] = story.memory(state)
            if not is_copy or version == len(story.states):
                self._judge_counters(key, story, state)
            before = state

    def _is_explained(self, key: int, story: Story, before: State, state: State) -> bool:
        """Whether there is a verb that makes *state* of the one before. If so, note what it let go of."""
        present = story.memories[before.version]
        new = range(before.next_sequence, state.next_sequence)
        for intent, part in self._sayers(story, new):
            if not self._in_time(intent, key, state.version):
                continue
            ids, eviction = self._added(intent, part, story, present)
            if len(eviction.added) != len(new):
                continue
            places = [*present, *new]  # the eviction's keys are their indexes
            expected = [places[entry.key] for entry in eviction.entries()]
            if story.memory(state) == expected:
                story.client_ids |= ids
                if not intent.keep_history:
                    story.gone |= set(places) - set(expected)
                return True
        memory = story.memory(state)
        found = tuple(story.rows[sequence].label for sequence in memory)
        makers = [] if memory == present and not new else self.by_memory[story.name, found]
        makers = [*makers, *([] if memory or new else self.by_kind[story.name, "clear"])]
        if memory == present and not new:
            makers += self.by_kind[story.name, "recount"] + self.by_kind[story.name, "title"]
            if state.version == 1:
                return True  # made, to be written to
        for intent in makers:
            if self._in_time(intent, key, state.version):
                story.rewritten |= set(new)
                if intent.kind in {"set", "clear"} and not intent.keep_history:
                    story.gone |= {*present, *new} - set(memory)
                return True
        return False

    def _sayers(self, story: Story, new: Sequence[int]) -> Iterator[tuple[Intent, int]]:
        """The adds and turns that may have said the messages *new*, each with the number of its part."""
        said = [story.rows[sequence] for sequence in new if sequence in story.rows]
        if said and all(row.in_history for row in said):
            verb, _, part = said[0].part.rpartition("/")
            for intent in self.by_verb.get(verb, ()):
                if intent.kind in {"add", "turn"}:
                    yield intent, int(part)
        elif new and not said:  # all of them left at once, and are not kept
            for intent in self.by_kind[story.name, "add"] + self.by_kind[story.name, "turn"]:
                if not intent.keep_history:
                    yield from ((intent, part) for part in range(len(intent.parts)))

    def _added(self, intent: Intent, part: int, story: Story, present: list[int]) -> tuple[set[str], Eviction]:
        """What the windows' rules make of the memory when *intent* says one of its parts, and its new client ids."""
        eviction = Eviction.of([story.rows[sequence].message for sequence in present], WINDOWS[intent.window])
        ids: set[str] = set()
        for place, message in enumerate(said_by(intent.parts[part])):
            client_id = intent.client_ids[place] if intent.client_ids else None
            if client_id in story.client_ids:
                continue
            count = len(eviction.added)
            eviction.add(message)
            if client_id is not None and len(eviction.added) > count:
                ids.add(client_id)
        return ids, eviction

    def _in_time(self, intent: Intent, key: int, version: int) -> bool:
        """Whether *intent* may have made that version: it began before, and was not seen to end before."""
        after = outcome.after if (outcome := self.outcomes.get(intent.id)) else None
        began = intent.before is None or intent.before < (key, version)
        return began and (after is None or (key, version) <= after) and self._state(intent, 0) != "undone"

    def _judge_counters(self, key: int, story: Story, state: State) -> None:
        memory = story.messages(state.version)
        counted: tuple[int, ...] = (len(memory),)
        kept: tuple[int, ...] = (state.memory_messages,)
        if (estimator := ESTIMATORS.get(state.counted_by)) is not None:
            counted += (sum(map(estimator.estimate_token_count_in_message, memory)),)
            kept += (state.memory_tokens,)
        if counted != kept:
            self.find("wrong counters", f"{story.name} ({key}) version {state.version}: {kept}, but has {counted}.")

    # What workers were told

    def _judge_said(self, attempts: list[Intent], part: int) -> None:
        """Whether the messages of one part of a verb are there once, if they have to be, or not at all."""
        states = [self._state(intent, part) for intent in attempts]
        said = [label for label in labels(said_by(attempts[0].parts[part])) if label.startswith(f"{attempts[0].verb}/")]
        where = f"{attempts[0].conversation}: {attempts[0].verb}/{part} ({attempts[0].kind})"
        found = {label: Counter(key for key, _sequence in self._originals(label)) for label in said}
        keys = set().union(*found.values())
        # Where rows do not stay, those that would leave at once are not written.
        all_stay = all(intent.keep_history for intent in attempts)
        for counts in found.values():
            for key, count in counts.items():
                if count > 1:
                    self.find("doubled", f"{where} is {count} times in {key}.")
        for key in keys:
            if all_stay and not all(key in counts for counts in found.values()):
                self.find("half written", f"{where} in {key}: {[label for label in said if key in found[label]]}.")
        if set(states) == {"undone"} and keys:
            self.find("undone, yet there", f"{where} in {sorted(keys)}.")
        if "acknowledged" in states:
            self.acknowledged += len(said)
        for intent, state in zip(attempts, states, strict=True):
            if state != "acknowledged":
                continue
            outcome = self.outcomes[intent.id]
            before, after = intent.before, outcome.after
            is_same = before is not None and after is not None and before[0] == after[0]
            if said and all_stay and (before[0] not in keys if is_same else not keys):
                self.find("lost", f"{where} by {intent.id}, between {before} and {after}.")
            elif intent.kind == "add" and is_same:
                self._judge_answer(intent, outcome, self.stories[after[0]], all_stay=all_stay)

    def _judge_answer(self, intent: Intent, outcome: Outcome, story: Story, *, all_stay: bool) -> None:
        """Whether what an add returned are the places of its messages, and were written while it ran."""
        said = labels(said_by(intent.parts[0]))
        found = [story.rows[place].label if place in story.rows else "?" for place in outcome.answer]
        if len(found) != len(said) or (all_stay and found != said):
            self.find("wrong answer", f"{intent.id} got {outcome.answer}, which are {found}, not {said}.")
        if any(place >= story.states[outcome.after[1] - 1].next_sequence for place in outcome.answer):
            self.find("no effect", f"{intent.id} was acknowledged before it was there.")

    def _judge_effect(self, intent: Intent) -> None:
        """Whether a verb that says nothing was done while it ran."""
        before, after = intent.before, self.outcomes[intent.id].after
        if "maybe" in self.outcomes[intent.id].states:
            return  # it may still go on
        if before is None or after is None or before[0] != after[0]:
            is_erased = before is None or before[0] in self.erased
            if intent.kind != "copy" and not is_erased:
                self.find("lost", f"{intent.conversation}: {before[0]} is gone, and nobody erased it.")
            return
        story = self.stories[before[0]]
        versions = range(before[1], after[1] + 1)
        found = {tuple(story.rows[sequence].label for sequence in story.memories[version]) for version in versions}
        counted = {story.states[version - 1].counted_by for version in versions}
        if intent.kind == "set":
            done = self._memory_set(intent) in found
        elif intent.kind == "clear":
            done = () in found
        elif intent.kind == "recount":
            done = WINDOWS[intent.window].counter in counted or () in found
        elif intent.kind == "erase":
            done = False
        elif intent.kind == "copy":
            copies = [self.stories[key] for key in self.by_name[f"copy-{intent.id}"]]
            done = len(copies) == 1 and tuple(labels(copies[0].messages(len(copies[0].states)))) in found
        else:
            return
        if not done:
            self.find("no effect", f"{intent.conversation}: {intent.id} ({intent.kind}) between {before} and {after}.")

    def _judge_read(self, seen: Seen) -> None:
        """Whether a memory that somebody saw was one while he looked."""
        candidates = [
            (key, version)
            for key in self.by_name[seen.conversation]
            for version in range(len(self.stories[key].states) + 1)
            if (seen.before or (0, 0)) <= (key, version) and (seen.after is None or (key, version) <= seen.after)
        ]
        window = WINDOWS[seen.window]
        may_be_absent = seen.before is None or seen.after is None or seen.before[0] != seen.after[0]
        if may_be_absent and not seen.labels:
            return
        for key, version in candidates:
            if labels(window.trim(self.stories[key].messages(version))) == seen.labels:
                return
        if seen.is_dirty:
            self.dirty_reads += 1
        else:
            was = f"between {seen.before} and {seen.after}"
            self.find("torn read", f"{seen.reader} saw {seen.conversation} {was} as {seen.labels}.")

    def _judge_told(self) -> None:
        counts = Counter((told.conversation, sequence) for told in self.told for sequence in told.sequences)
        for (key, sequence), count in counts.items():
            if count > 1 or key not in self.stories or sequence not in self.stories[key].rows:
                self.find("told of what is not there", f"{sequence} of {key}, {count} times")

    def _judge_erased(self) -> None:
        """Whether idle conversations were idle when they were erased."""
        for key, updated_at in self.erased.items():
            name = self.stories[key].name
            erasing = [
                datetime.datetime.fromisoformat(intent.cutoff)
                for intent in self.by_kind[name, "erase idle"]
                if self._state(intent, 0) != "undone" and (intent.before is None or intent.before[0] <= key)
            ]
            if name.startswith("idle") and not any(cutoff > updated_at for cutoff in erasing):
                self.find("erased too early", f"{name} ({key}), written to at {updated_at}")

    def _judge_rows(self) -> None:
        """Whether the rows of the conversations that live are those that were written and are kept, and no others."""
        found: dict[int, set[int]] = defaultdict(set)
        for key, sequence in Message.objects.using(self.using).values_list("conversation_id", "sequence").iterator():
            found[key].add(sequence)
        living = set(Conversation.objects.using(self.using).values_list("pk", flat=True))
        if living != self.stories.keys() - self.erased.keys():
            self.find("wrong rows", f"conversations {living ^ (self.stories.keys() - self.erased.keys())}")
        for key in found.keys() | living:
            story = self.stories[key]
            kept = set(story.rows) - story.gone if key in living else set()
            if missing := kept - found[key]:
                self.find("lost", f"{story.name} ({key}) has no rows {sorted(missing)[:20]}.")
            if more := found[key] - kept:
                self.find("wrong rows", f"{story.name} ({key}) still has {sorted(more)[:20]}.")

    def _judge_errors(self) -> None:
        for fault in self.faults:
            if not self._is_allowed(fault):
                where = "in a transaction" if fault.in_transaction else "alone"
                self.find("unexpected error", f"{fault.kind} {where}, {fault.verb}: {fault.detail}")

    def _is_allowed(self, fault: Fault) -> bool:
        if fault.kind in {DEADLOCK, SERIALIZATION, LOST_TRANSACTION}:
            # Model.save() is Django's, and tries nothing again; an import has read its lines already.
            return fault.in_transaction or fault.verb in self.tried_once
        return fault.is_known and (self.disturbed or fault.kind != CONNECTION)

    # What is asked of the records

    def _state(self, intent: Intent, part: int) -> str:
        outcome = self.outcomes.get(intent.id)
        if outcome is None:
            return "maybe"
        return outcome.states[part] if part < len(outcome.states) else "undone"

    def _memory_set(self, intent: Intent) -> tuple[str, ...]:
        """The memory that a set makes."""
        return tuple(labels(WINDOWS[intent.window].trim(said_by(intent.parts[0]))))

    def _originals(self, label: str) -> list[tuple[int, int]]:
        """Where a message is in a history as who said it first has said it."""
        return [
            (key, sequence)
            for key, sequence in self.places[label]
            if not self.stories[key].name.startswith("copy") and sequence not in self.stories[key].rewritten
        ]


@cache
def said_by(part: str) -> list[ChatMessage]:
    """The messages of a part of a verb."""
    return messages_from_json(part)


def _aware(moment: Any) -> datetime.datetime:
    """The moment that a driver gives, in UTC."""
    if isinstance(moment, str):
        moment = datetime.datetime.fromisoformat(moment)
    return moment if timezone.is_aware(moment) else moment.replace(tzinfo=datetime.UTC)
