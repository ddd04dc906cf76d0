"""The verdict on a soak: the recorded states, replayed in plain Python and compared with the workers' logs.

A state must follow from the previous one by one verb that a worker had started by then and had not seen end before. Its
rows, its memory and its columns show which verbs are possible; one of them, done by the oracle of the tests, must have
the same result: see ``Reference``. A summary's text names what it covers, which must be what had been evicted and was
not covered by a summary.

What a worker saw (that a verb was done, that a message is missing, a memory) must be right about one of the states
that were current in the meantime. A fork or an import must have the memory and the path of one of those states. Its
other branches, and summaries outside of a memory, are left to ``check_chatmemory``.
"""

from __future__ import annotations

import datetime
import json
from collections import Counter, defaultdict
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from django.utils import timezone

from benchmarks.soak.errors import CONNECTION, DEADLOCK, LOST_TRANSACTION, NO_FILE, NO_MESSAGE, SERIALIZATION
from benchmarks.soak.questions import is_absent, is_copied_as, is_done, is_seen
from benchmarks.soak.records import ESTIMATORS, FILE_BYTES, Announced, Fault, Intent, Outcome, Seen, label_of, part_of
from benchmarks.soak.reference import WINDOWS, ImpossibleError, rearranges
from benchmarks.soak.replay import Columns, Question, Row, State, Story, by_version
from benchmarks.soak.triggers import written
from benchmarks.soak.verbs import labels
from chatmemory_django.codec import messages_from_json
from chatmemory_django.contrib.files.marks import extracted
from chatmemory_django.db import row_codec
from chatmemory_django.db.row_codec import Address
from chatmemory_django.messages import SystemMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.models.columns import to_message
from tests.oracle import MissingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.soak.records import Place, Record
    from benchmarks.soak.reference import Reference
    from chatmemory_django.messages import ChatMessage

EXAMPLES = 5
"""The number of examples printed for each kind of finding."""

NEVER = (
    "lost",
    "duplicated",
    "rolled back, yet stored",
    "partially written",
    "no effect",
    "wrong return value",
    "wrong refusal",
    "unexplained state",
    "wrong counters",
    "torn read",
    "signal for missing messages",
    "erased too early",
    "wrong rows",
    "unexpected error",
    "crash",
    "finding of check_chatmemory",
    "wrong files",
)
"""Findings that must not occur at all."""


class Judge:
    """Checks *records* and the database *using*, and counts findings."""

    def __init__(self, using: str, records: Sequence[Record], *, disturbed: bool) -> None:
        self.using = using
        self.disturbed = disturbed
        self.intents = [record for record in records if isinstance(record, Intent)]
        self.outcomes = {record.id: record for record in records if isinstance(record, Outcome)}
        self.faults = [record for record in records if isinstance(record, Fault)]
        self.seen = [record for record in records if isinstance(record, Seen)]
        self.announced = [record for record in records if isinstance(record, Announced)]
        self.tried_once = {intent.id for intent in self.intents if intent.kind in {"title", "copy"}}
        self.naming = {intent.id for intent in self.intents if intent.to is not None}
        """The verbs that name a message, which can be missing."""
        self.findings: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = defaultdict(list)
        self.dirty_reads = 0
        self.acknowledged = 0
        """The number of acknowledged messages."""
        self._load()

    def judge(self) -> None:
        """Check everything."""
        copies = [key for key, story in self.stories.items() if is_copy(story)]
        for key in copies:
            self._replay(key, self.stories[key])
        self._ask()
        for key in self.stories.keys() - copies:
            self._replay(key, self.stories[key])
        for attempts in self.by_verb.values():
            for part in range(len(attempts[0].parts)):
                if attempts[0].kind in {"add", "turn"}:
                    self._judge_messages(attempts, part)
        for intent in self.intents:
            if self._state(intent, 0) == "acknowledged":
                self._judge_effect(intent)
        for seen in self.seen:
            self._judge_read(seen)
        self._judge_announced()
        self._judge_erased()
        self._judge_rows()
        self._judge_errors()

    def find(self, what: str, *details: object) -> None:
        """Count a finding of the kind *what*."""
        self.findings[what] += 1
        if len(self.examples[what]) < EXAMPLES:
            self.examples[what].append(" ".join(map(str, details)))

    def errors(self) -> Counter[str]:
        """Count the errors that a soak provokes, by kind."""
        return Counter(fault.kind for fault in self.faults if self._is_allowed(fault))

    def _plain(self, column: str, value: str | None) -> Any:
        """Return *value*, as a trigger has copied it from *column*, decrypted if it is encrypted."""
        if row_codec.installed is None or not value:
            return value
        # It has its place in it: a fork's is that of its source.
        conversation, sequence, kind = value.split(":")[3:6]
        coder = row_codec.installed.at(Address(self.using, int(conversation)))
        return coder.decode(value, f"chatmemory.message.{column}", (int(sequence), kind))

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
        # An UPDATE that changes nothing takes a lock where there is no SELECT … FOR UPDATE.
        for values in dict.fromkeys(written(self.using, "soak_state")):
            state = State(*values)
            states[state.conversation].append(state)
        # One that waits for another's erasure has its key already: a higher key is not always a later conversation.
        self.born = {conversation: number for number, conversation in enumerate(states)}
        """The order in which conversations were created, by key."""
        rows: dict[int, dict[int, Row]] = defaultdict(dict)
        self.places: dict[str, list[tuple[int, int]]] = defaultdict(list)
        """By label, the conversation and the sequence of each row of a history."""
        for values in written(self.using, "soak_row"):
            key, sequence, kind, text, payload, metadata, *flags, parent, cut, is_pinned = values
            text, payload = self._plain("text", text), self._plain("payload", payload)
            label = label_of(text)
            part = json.loads(metadata).get("by") if metadata else None
            columns = Columns(*map(bool, flags), parent, cut, bool(is_pinned))
            rows[key][sequence] = Row(to_message(kind, text, payload), label, part or part_of(label), columns)
            if columns.in_history and part in {None, part_of(label)}:  # else the same message was sent again
                self.places[label].append((key, sequence))
        self.erased = {key: _aware(updated_at) for key, updated_at in written(self.using, "soak_erased")}
        changes: dict[int, list[tuple[int, int, Columns | None]]] = defaultdict(list)
        for key, sequence, version, is_deleted, *flags, parent, cut, is_pinned, is_empty in written(
            self.using, "soak_change"
        ):
            if not is_deleted:
                columns = Columns(*map(bool, flags), parent, cut, bool(is_pinned), bool(is_empty))
                changes[key].append((version, sequence, columns))
            elif key not in self.erased:  # else it may have been deleted with its conversation
                changes[key].append((version, sequence, None))
        self.stories = {
            key: Story(sorted(found, key=lambda state: state.version), rows[key], by_version(changes[key]))
            for key, found in sorted(states.items())
        }
        self.by_name: dict[str, list[int]] = defaultdict(list)
        for key, story in self.stories.items():
            self.by_name[story.name].append(key)

    # The replay

    def _replay(self, key: int, story: Story) -> None:
        before = story.states[0]._replace(version=0, next_sequence=1)
        story.memories[0], story.pins[0] = [], frozenset()
        made_at_once = is_copy(story)
        for version, state in enumerate(story.states, start=1):
            if state.version != version and not made_at_once:
                self.find("unexplained state", f"{story.name} ({key}): version {state.version} is number {version}.")
            if made_at_once:  # written more than once before it is visible
                state = state._replace(version=version)
            touched = story.go_on(before.next_sequence, state)
            if not made_at_once:
                self._judge_state(key, story, before, state, touched)
                for question in story.ask(version):
                    self.find(question.what, f"{story.name} ({key}) until version {version}: {question.about}")
            if not made_at_once or version == len(story.states):
                self._judge_counters(key, story, state)
            before = state

    def _judge_state(self, key: int, story: Story, before: State, state: State, touched: set[int]) -> None:
        """Return whether a verb turns the previous state into *state*; if so, its result is the new reference."""
        if state.version == 1 and not story.differences(state, story.reference, None):
            return  # created, to be written to
        new = range(before.next_sequence, state.next_sequence)
        there = [story.rows[sequence].message for sequence in new if sequence in story.rows]
        not_by: list[str] = []
        for intent, part in self._candidates(story, before, state):
            if not self._in_time(intent, key, state.version):
                not_by.append(f"{intent.id} at another time: {intent.before} {self.outcomes.get(intent.id)}")
                continue
            sent = messages_of_part(intent.parts[part]) if intent.parts else []
            try:
                expected = story.reference.done(intent, sent, part, there)
            except (ImpossibleError, MissingError) as exc:
                not_by.append(f"{intent.id} by {type(exc).__name__}")
                continue
            differences = story.differences(state, expected, None if rearranges(intent) else touched)
            if not differences:
                story.reference = expected
                if intent.kind == "set":
                    story.rewritten |= set(new)
                return
            not_by.append(f"{intent.id} {intent.kind} {intent.to} in another way: {', '.join(differences)}")
        was, sent_now, now = (
            [story.rows[sequence].label if sequence in story.rows else "?" for sequence in sequences]
            for sequences in (story.memories[before.version], new, story.memories[state.version])
        )
        where = f"{story.name} ({key}) version {state.version}"
        about = f"{where}: {was} + {sent_now} became {now}: {before} became {state}"
        self.find("unexplained state", f"{about}; it is by none of {not_by}.")
        story.adopt(state)

    def _candidates(self, story: Story, before: State, state: State) -> Iterator[tuple[Intent, int]]:
        """Yield the verbs that can have turned *before* into *state*, each with the number of its part."""
        new = range(before.next_sequence, state.next_sequence)
        sent = [story.rows[sequence] for sequence in new if sequence in story.rows]
        memory = story.memories[state.version]
        name = story.name
        if sent and sent[0].part:
            verb, _, part = sent[0].part.rpartition("/")
            for intent in self.by_verb.get(verb, ()):
                if intent.kind in {"add", "turn", "summarize"}:
                    yield intent, int(part)
        elif new and not sent:  # all of them were evicted at once, and are not kept
            for intent in self.by_kind[name, "add"] + self.by_kind[name, "turn"]:
                if not intent.keep_history:
                    yield from ((intent, part) for part in range(len(intent.parts)))
        found = tuple(story.rows[sequence].label for sequence in memory)
        others = list(self.by_memory[name, found])
        if not new:
            if not memory:
                others += self.by_kind[name, "clear"]
            if state.total_messages < before.total_messages or len(memory) < len(story.memories[before.version]):
                others += self.by_kind[name, "pop"] + self.by_kind[name, "remove"] + self.by_kind[name, "evict"]
            if state.parent_sequence is not None:
                # An add rewinds even if it adds nothing, as with an existing system message.
                going_on = self.by_kind[name, "rewind"] + self.by_kind[name, "add"]
                others += (each for each in going_on if each.to == state.parent_sequence)
                others += self.by_kind[name, "switch"]
            if story.pins[state.version] != story.pins[before.version]:
                others += self.by_kind[name, "pin"] + self.by_kind[name, "unpin"]
            if memory == story.memories[before.version]:
                others += self.by_kind[name, "recount"] + self.by_kind[name, "title"]
        yield from ((intent, 0) for intent in others)

    def _in_time(self, intent: Intent, key: int, version: int) -> bool:
        """Return whether *intent* can have written that version: it started before, and was not seen to end before."""
        after = outcome.after if (outcome := self.outcomes.get(intent.id)) else None
        place = self._moment((key, version))
        began = intent.before is None or self._moment(intent.before) < place
        return began and (after is None or place <= self._moment(after)) and self._state(intent, 0) != "undone"

    def _moment(self, place: tuple[int, int]) -> tuple[int, int]:
        """Return a *place* to compare with those of all conversations of one name."""
        return self.born[place[0]], place[1]

    def _judge_counters(self, key: int, story: Story, state: State) -> None:
        memory = story.messages(state.version)
        counted: tuple[int, ...] = len(memory), len(story.pins[state.version])
        kept: tuple[int, ...] = state.memory_messages, state.pinned_count
        if (estimator := ESTIMATORS.get(state.counted_by)) is not None:
            counted += (sum(map(estimator.estimate_token_count_in_message, memory)),)
            kept += (state.memory_tokens,)
        if counted != kept:
            self.find("wrong counters", f"{story.name} ({key}) version {state.version}: {kept}, but has {counted}.")

    # The workers' logs

    def _ask(self) -> None:
        """Register the questions about the states that were current while something was done."""
        by_id = {intent.id: intent for intent in self.intents}
        for intent in self.intents:
            outcome = self.outcomes.get(intent.id)
            if intent.kind in {"copy", "fork"}:
                after = None if outcome is None else outcome.after
                for key in self.by_name[f"{intent.kind}-{intent.id}"]:
                    question = is_copied_as(intent, self.stories[key])
                    self._ask_between("no effect", question, intent, intent.before, after)
            elif outcome is not None and outcome.after is not None and set(outcome.states) == {"acknowledged"}:
                done = is_done(intent, outcome.answer)
                if done is not None:
                    self._ask_between("no effect", done, intent, intent.before, outcome.after)
        for fault in self.faults:
            outcome = self.outcomes.get(fault.verb)
            if fault.kind == NO_MESSAGE and not fault.in_transaction and outcome is not None and outcome.after:
                intent = by_id[fault.verb]
                self._ask_between("wrong refusal", partial(is_absent, intent), intent, intent.before, outcome.after)
        for seen in self.seen:
            if seen.rewound_to is not None and not seen.is_dirty and seen.after is not None:
                self._ask_between("torn read", partial(is_seen, seen), seen, seen.before, seen.after)

    def _ask_between(
        self, what: str, holds: Callable[[Reference], bool], about: Intent | Seen, before: Place, after: Place
    ) -> None:
        """Register a question about the states from *before* to *after*, or to the last one, of one conversation."""
        if before is None or (after is not None and after[0] != before[0]):
            return
        key, version = before
        last = len(self.stories[key].states) if after is None else after[1]
        self.stories[key].questions[version].append(Question(what, about, last, holds))

    def _judge_messages(self, attempts: list[Intent], part: int) -> None:
        """Check that the messages of one part of a verb are stored once, if required, or not at all."""
        states = [self._state(intent, part) for intent in attempts]
        messages = messages_of_part(attempts[0].parts[part])
        sent = [label for label in labels(messages) if label.startswith(f"{attempts[0].verb}/")]
        where = f"{attempts[0].conversation}: {attempts[0].verb}/{part} ({attempts[0].kind})"
        found = {label: Counter(key for key, _sequence in self._originals(label)) for label in sent}
        keys = set().union(*found.values())
        # Where evicted rows are deleted, messages evicted at once are not written.
        all_stay = all(intent.keep_history for intent in attempts)
        for counts in found.values():
            for key, count in counts.items():
                if count > 1:
                    self.find("duplicated", f"{where} is {count} times in {key}.")
        for key in keys:
            if all_stay and not all(key in counts for counts in found.values()):
                self.find("partially written", f"{where} in {key}: {[label for label in sent if key in found[label]]}.")
        if set(states) == {"undone"} and keys:
            self.find("rolled back, yet stored", f"{where} in {sorted(keys)}.")
        if "acknowledged" in states:
            self.acknowledged += len(sent)
        # A system message is not stored again where a memory that was set has it.
        systems = labels([message for message in messages if isinstance(message, SystemMessage)])
        keys |= {key for label in systems for key, _ in self.places[label]}
        for intent, state in zip(attempts, states, strict=True):
            if state != "acknowledged":
                continue
            outcome = self.outcomes[intent.id]
            before, after = intent.before, outcome.after
            is_same = before is not None and after is not None and before[0] == after[0]
            if sent and all_stay and (before[0] not in keys if is_same else not keys):
                self.find("lost", f"{where} by {intent.id}, between {before} and {after}.")
            elif intent.kind == "add" and is_same:
                self._judge_answer(intent, outcome, self.stories[after[0]], all_stay=all_stay)

    def _judge_answer(self, intent: Intent, outcome: Outcome, story: Story, *, all_stay: bool) -> None:
        """Check that an add returned the sequences of its messages, and that they were written while it ran."""
        sent = labels(messages_of_part(intent.parts[0]))
        found = [story.rows[place].label if place in story.rows else "?" for place in outcome.answer]
        if len(found) != len(sent) or (all_stay and found != sent):
            self.find("wrong return value", f"{intent.id} got {outcome.answer}, which are {found}, not {sent}.")
        if any(place >= story.states[outcome.after[1] - 1].next_sequence for place in outcome.answer):
            self.find("no effect", f"{intent.id} was acknowledged before it was stored.")

    def _judge_effect(self, intent: Intent) -> None:
        """Check that a verb without messages was done while it ran."""
        before, after = intent.before, self.outcomes[intent.id].after
        if "maybe" in self.outcomes[intent.id].states:
            return  # it may still take effect
        if before is None or after is None or before[0] != after[0]:
            is_erased = before is None or before[0] in self.erased
            if intent.kind not in {"copy", "fork"} and not is_erased:
                self.find("lost", f"{intent.conversation}: {before[0]} is missing, and no verb erased it.")
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
            done = getattr(WINDOWS[intent.window].estimator, "name", "") in counted or () in found
        elif intent.kind == "erase":
            done = False
        elif intent.kind in {"copy", "fork"}:
            done = len(self.by_name[f"{intent.kind}-{intent.id}"]) == 1
        else:
            return
        if not done:
            self.find("no effect", f"{intent.conversation}: {intent.id} ({intent.kind}) between {before} and {after}.")

    def _judge_read(self, seen: Seen) -> None:
        """Check that a memory that a worker saw existed at that time."""
        if seen.rewound_to is not None:
            return  # the replay checks this
        candidates = [
            (key, version)
            for key in self.by_name[seen.conversation]
            for version in range(len(self.stories[key].states) + 1)
            if seen.before is None or self._moment(seen.before) <= self._moment((key, version))
            if seen.after is None or self._moment((key, version)) <= self._moment(seen.after)
        ]
        window = WINDOWS[seen.window]
        may_be_absent = seen.before is None or seen.after is None or seen.before[0] != seen.after[0]
        if may_be_absent and not seen.labels:
            return
        for key, version in candidates:
            if labels(self.stories[key].read(version, window)) == seen.labels:
                return
        if seen.is_dirty:
            self.dirty_reads += 1
        else:
            was = f"between {seen.before} and {seen.after}"
            self.find("torn read", f"{seen.reader} saw {seen.conversation} {was} as {seen.labels}.")

    def _judge_announced(self) -> None:
        counts = Counter(
            (announced.conversation, sequence) for announced in self.announced for sequence in announced.sequences
        )
        for (key, sequence), count in counts.items():
            if count > 1 or key not in self.stories or sequence not in self.stories[key].rows:
                self.find("signal for missing messages", f"{sequence} of {key}, {count} times")

    def _judge_erased(self) -> None:
        """Check that idle conversations were idle when they were erased."""
        for key, updated_at in self.erased.items():
            name = self.stories[key].name
            erasing = [
                datetime.datetime.fromisoformat(intent.cutoff)
                for intent in self.by_kind[name, "erase idle"]
                if self._state(intent, 0) != "undone"
                and (intent.before is None or self.born[intent.before[0]] <= self.born[key])
            ]
            if name.startswith("idle") and not any(cutoff > updated_at for cutoff in erasing):
                self.find("erased too early", f"{name} ({key}), written to at {updated_at}")

    def _judge_rows(self) -> None:
        """Check that the rows of existing conversations are those that were written and kept, and no others."""
        found: dict[int, set[int]] = defaultdict(set)
        for key, sequence in Message.objects.using(self.using).values_list("conversation_id", "sequence").iterator():
            found[key].add(sequence)
        living = set(Conversation.objects.using(self.using).values_list("pk", flat=True))
        if living != self.stories.keys() - self.erased.keys():
            self.find("wrong rows", f"conversations {living ^ (self.stories.keys() - self.erased.keys())}")
        for key in found.keys() | living:
            story = self.stories[key]
            kept = set(story.columns) if key in living else set()
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
            # Model.save() is Django's, and retries nothing; an import has already read its lines.
            return fault.in_transaction or fault.verb in self.tried_once
        if fault.kind == NO_MESSAGE:
            return fault.verb in self.naming
        if fault.kind == NO_FILE:  # what sees the past, or what is not committed, sees messages that have no file
            return fault.in_transaction or fault.is_dirty
        return fault.is_known and (self.disturbed or fault.kind != CONNECTION)

    # Look-ups

    def _state(self, intent: Intent, part: int) -> str:
        outcome = self.outcomes.get(intent.id)
        if outcome is None:
            return "maybe"
        return outcome.states[part] if part < len(outcome.states) else "undone"

    def _memory_set(self, intent: Intent) -> tuple[str, ...]:
        """Return the memory that a set writes."""
        return tuple(labels(WINDOWS[intent.window].fitting(messages_of_part(intent.parts[0]))))

    def _originals(self, label: str) -> list[tuple[int, int]]:
        """Return where a message is in a history as its original."""
        return [
            (key, sequence)
            for key, sequence in self.places[label]
            if not is_copy(self.stories[key]) and sequence not in self.stories[key].rewritten
        ]


def is_copy(story: Story) -> bool:
    """Return whether the conversation is a copy of another one."""
    return story.name.startswith(("copy", "fork"))


@cache
def messages_of_part(part: str) -> list[ChatMessage]:
    """Return the messages of a part of a verb as their rows keep them: with references to their files."""
    return [extracted(message, FILE_BYTES)[0] for message in messages_from_json(part)]


def _aware(moment: Any) -> datetime.datetime:
    """Return a driver's time in UTC."""
    if isinstance(moment, str):
        moment = datetime.datetime.fromisoformat(moment)
    return moment if timezone.is_aware(moment) else moment.replace(tzinfo=datetime.UTC)
