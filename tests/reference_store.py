"""
A store with a history in plain dicts, for tests: the rules of ``chatmemory_django.core`` without a database.

What is right is in ``tests.oracle``. Here the rules can be compared with that in milliseconds, and what a memory does
with a store that keeps the history can be tried outside of transactions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, Unpack

from chatmemory_django.codec import message_to_json
from chatmemory_django.core.branches import Present, Summary, Tree, fork_point, is_on, moved, summaries_with
from chatmemory_django.core.clearing import cleared
from chatmemory_django.core.limits import memory_key
from chatmemory_django.core.pending import Failure, Pending, take
from chatmemory_django.core.reasons import Explained, Reader, Remembered, Uncounted
from chatmemory_django.core.refills import brought_back, is_pinned_before, left_out
from chatmemory_django.core.tool_calls import MAX_DISTANCE, counterparts
from chatmemory_django.core.windows import NOTHING_LEAVES, Entry, Eviction, Window, continuation, pins, to_entry
from chatmemory_django.messages import (
    ChatMessage,
    CustomMessage,
    MessageType,
    NewMessage,
    SystemMessage,
    checked_messages,
)
from chatmemory_django.stores.base import (
    Appended,
    AppendOptions,
    ChatMemoryStore,
    MessageNotFoundError,
    Phase,
    Reading,
)

REMOVED = CustomMessage({})
"""What is left of a removed message."""


class ReferenceStore(ChatMemoryStore):
    """Memories that one thread uses. Without *keep_history*, only messages in the memory can be rewound to."""

    def __init__(self, *, keep_history: bool = True) -> None:
        self._keep_history = keep_history
        self.conversations: dict[str, StoredConversation] = {}

    @property
    def keep_history(self) -> bool:
        return self._keep_history

    def get_messages(self, memory_id: object) -> list[ChatMessage]:
        conversation = self.conversations.get(memory_key(memory_id))
        return [] if conversation is None else conversation.messages()

    def update_messages(self, memory_id: object, messages: Iterable[ChatMessage]) -> None:
        kept = checked_messages(messages)
        with self._writing(memory_id, creates=bool(kept)) as conversation:
            conversation.replace(kept)

    def delete_messages(self, memory_id: object) -> None:
        with self._writing(memory_id) as conversation:
            conversation.clear()

    def append_messages(
        self,
        memory_id: object,
        messages: Sequence[ChatMessage | NewMessage],
        window: Window,
        *,
        conversation: object = None,
        **options: Unpack[AppendOptions],
    ) -> Appended:
        added, after = self._without_data(messages), options.get("after")
        with self._writing(memory_id, window, creates=True) as found:
            phase, turn = options.get("phase"), options.get("turn", ())
            if after is not None and phase == "open":
                return Appended(Eviction.of([], window), found.set_aside(added, after))
            repeats, archived = options.get("repeats", False), options.get("archived", False)
            return found.append(added, window, after, turn, phase, repeats=repeats, archived=archived)

    def read_memory(self, memory_id: object, window: Window) -> Reading:
        with self._writing(memory_id) as conversation:
            eviction = conversation.filled_again(window).eviction(window)
        eviction.trim()
        return Reading(eviction)

    def replace_messages(self, memory_id: object, messages: Sequence[ChatMessage], window: Window) -> None:
        trimmed = window.without_clearing().trimmed(messages)
        with self._writing(memory_id, window, creates=bool(trimmed.entries())) as conversation:
            conversation.replace(trimmed.messages(), trimmed)

    def read_messages(self, memory_id: object, window: Window) -> list[ChatMessage]:
        return self.read_memory(memory_id, window).eviction.messages()

    def read_memory_after(self, memory_id: object, window: Window, after: int) -> Reading:
        with self._writing(memory_id) as stored:
            conversation = stored.filled_again(window)
            move = conversation.moved(after, window)
            eviction = conversation.eviction(window) if move is None else move.eviction
        eviction.trim()
        return Reading(eviction)

    def rewind(self, memory_id: object, to: int, window: Window) -> None:
        with self._writing(memory_id, window) as conversation:
            conversation.go_on_from(to, window)

    def switch(self, memory_id: object, to: int, window: Window) -> int:
        with self._writing(memory_id, window) as conversation:
            newest = conversation.newest_from(to)
            conversation.go_on_from(newest, window)
            return newest

    def pop(self, memory_id: object, window: Window | None = None) -> ChatMessage | None:
        with self._writing(memory_id, window) as conversation:
            newest = max(conversation.memory(without_summary=True), default=None)
            if newest is None:
                return None
            message = conversation.rows[newest].message
            conversation.remove([newest])
            return message

    def evict(self, memory_id: object, count: int, window: Window | None = None) -> list[int]:
        with self._writing(memory_id, window) as conversation:
            return conversation.evict(count)

    def remove(self, memory_id: object, *keys: int, with_results: bool = False) -> list[int]:
        with self._writing(memory_id) as conversation:
            removed = {each for key in keys for each in conversation.found(key, with_counterparts=with_results)}
            conversation.remove(removed)
            return sorted(removed)

    def read_pending(
        self, memory_id: object, window: Window, max_tokens: int, *, waits: bool = False
    ) -> Pending | None:
        with self._writing(memory_id) as conversation:
            return conversation.pending(window, max_tokens, waits=waits)

    def put_summary(self, memory_id: object, pending: Pending, summary: SystemMessage, window: Window) -> bool:
        with self._writing(memory_id) as conversation:
            return conversation.put_summary(pending, summary, window)

    def put_failure(self, memory_id: object, pending: Pending) -> None:
        with self._writing(memory_id) as conversation:
            conversation.failure = pending.failed()

    def explain(self, memory_id: object, reader: Reader, count: int) -> list[Explained]:
        with self._writing(memory_id) as conversation:
            recent = sorted(conversation.history())[-count:]
            return Remembered(
                map(conversation.uncounted, conversation.memory()),
                reader,
                pinned=conversation.pinned,
                summary=conversation.summary,
                forgotten_through=conversation.forgotten_through,
                evicted=conversation,
                before=conversation.before_memory,
            ).explain(map(conversation.uncounted, recent))

    @contextmanager
    def _writing(
        self, memory_id: object, window: Window | None = None, *, creates: bool = False
    ) -> Iterator[StoredConversation]:
        """
        Yield the conversation *memory_id*; a missing one is only stored afterwards with *creates*.

        If *window* has outgrown it, its memory is filled again, which is stored if anything else changes.
        """
        key = memory_key(memory_id)
        there = self.conversations.get(key, StoredConversation(key))
        conversation = there.filled_again(window)
        filled = replace(conversation)
        yield conversation
        if conversation is not there and conversation == filled:
            return
        if not self.keep_history:
            conversation.forget_history()
        if creates or key in self.conversations:
            self.conversations[key] = conversation


class _Moved(NamedTuple):
    """A conversation that continues from another message."""

    to: int
    path: list[tuple[int, int]]
    eviction: Eviction
    forgotten_through: int
    kept_out_through: int


@dataclass(slots=True)
class _Row:
    """A message of a conversation; see the columns of ``models.Message``."""

    message: ChatMessage
    parent: int | None = None
    in_history: bool = True
    on_path: bool = True
    through: int | None = None
    """The last message that a summary covers; None for other messages, and for summaries that are not used again."""
    cleared_before: int | None = None
    is_cleared: bool = False


@dataclass(slots=True)
class StoredConversation:
    """A conversation, see the columns of ``models.Conversation``; the memory after its front is a list of keys."""

    key: str
    rows: dict[int, _Row] = field(default_factory=dict)
    next_key: int = 1
    parent: int | None = None
    pinned: int | None = None
    summary: int | None = None
    window: list[int] = field(default_factory=list)
    forgotten_through: int = 0
    evicted_limit: int | None = None
    evicted_by: str = ""
    kept_out_through: int = 0
    failure: Failure | None = None

    def memory(self, *, without_summary: bool = False) -> list[int]:
        """Return the keys of the messages in the memory, in its order."""
        front = [self.pinned] if without_summary else [self.pinned, self.summary]
        return [key for key in front if key is not None] + self.window

    def messages(self) -> list[ChatMessage]:
        return [self.remembered(key) for key in self.memory()]

    def remembered(self, key: int) -> ChatMessage:
        """Return what the memory has of message *key*."""
        row = self.rows[key]
        return cleared(row.message) if row.is_cleared else row.message

    def filled_again(self, window: Window | None) -> StoredConversation:
        """Return this conversation or, if *window* has outgrown it, one with its rows and a memory filled again."""
        if window is None or not window.outgrows(self):
            return self
        before = (self.entry(row.sequence, window) for row in self.before_memory(self._covered()))
        back = brought_back(before, [self.entry(key, window) for key in self.memory()], window)
        pinned, keys = self.pinned, [*(entry.key for entry in back), *self.window]
        if pinned is not None and back and not is_pinned_before(pinned, keys[0], window):
            keys, pinned = sorted([pinned, *keys]), None
        return replace(self, pinned=pinned, window=keys, evicted_limit=window.evicted_limit)

    def before_memory(self, covered: int, size: int = 0) -> Iterator[Uncounted]:
        """Yield the messages that may come back to the memory, newest first; nothing that is *covered*."""
        behind, start = (
            max(self.forgotten_through, self.kept_out_through, covered),
            min(self.window, default=self.next_key),
        )
        for key in sorted(self.history(), reverse=True):
            row = self.rows[key]
            if behind < key < start and row.on_path and row.message.type != MessageType.SYSTEM:
                yield self.uncounted(key)

    def eviction(self, window: Window) -> Eviction:
        """Return the memory, ready for additions."""
        entries = {key: self.entry(key, window) for key in self.memory()}
        return Eviction.of_entries(
            [entries[key] for key in self.window],
            window,
            next_key=self.next_key,
            pinned=None if self.pinned is None else entries[self.pinned],
            summary=None if self.summary is None else entries[self.summary],
        )

    def entry(self, key: int, window: Window) -> Entry:
        message = self.remembered(key)
        return to_entry(key, message, window.cost(message) if window.is_additive else None)

    def uncounted(self, key: int) -> Uncounted:
        """Return the message *key* for ``explain``."""
        row = self.rows[key]
        return Uncounted(key, row.message, row.parent, row.on_path, is_cleared=row.is_cleared)

    def append(
        self,
        messages: Sequence[ChatMessage],
        window: Window,
        after: int | None,
        turn: Sequence[int],
        phase: Phase | None,
        *,
        repeats: bool = False,
        archived: bool = False,
    ) -> Appended:
        takes_up = [] if after is None else [key for key in turn if key > after]
        forgotten = [key for key in takes_up if self.rows[self.checked(key)].cleared_before is not None]
        if forgotten:  # nothing up to it comes back
            after, takes_up = forgotten[-1], [key for key in takes_up if key > forgotten[-1]]
        move = None if after is None else self.moved(after, window)
        eviction = self.eviction(window) if move is None else move.eviction
        if phase in {"open", "round"}:
            eviction.keeps_from = NOTHING_LEAVES
        elif turn and move is None and not takes_up:
            eviction, held = eviction.split(min(turn))
            for entry in held:
                eviction.add_again(entry)
        for key in takes_up:
            eviction.add(self.rows[self.checked(key)].message, key=key)
        add = eviction.pass_by if archived else partial(eviction.add, repeats=repeats)
        keys = [add(message) for message in messages]
        # Nothing is changed before all messages are known to fit.
        if move is not None:
            self.go_on(move)
        if takes_up and after in self.rows and (cut := self.rows[after].cleared_before) is not None:
            self.rows[after].cleared_before = min(cut, takes_up[0])  # they come after the clear only now
        for key in takes_up:  # even one that is already in the memory: the next message follows it
            self.rows[key].on_path = True
            self.parent = key
        for entry in eviction.added:
            if entry.key >= self.next_key and entry.message is not None:
                self.rows[entry.key] = _Row(entry.message, self.parent)
                self.parent = None
        self.next_key = eviction.next_key
        self._keep(eviction)
        if archived and messages:
            self.kept_out_through = keys[-1]
        return Appended(eviction, keys)

    def set_aside(self, messages: Sequence[ChatMessage], after: int) -> list[int]:
        """Store *messages* as a branch that begins after *after* and is not on the path."""
        keys = list(range(self.next_key, self.next_key + len(messages)))
        parent, head = self.checked(after), self.head()
        for key, message in zip(keys, messages, strict=True):
            self.rows[key] = _Row(message, parent if key == keys[0] else None, on_path=False)
        self.parent, self.next_key = head, self.next_key + len(messages)
        return keys

    def replace(self, messages: Sequence[ChatMessage], trimmed: Eviction | None = None) -> None:
        """Replace the memory with *messages*, as the Django store does; see ``Replacement`` there."""
        new = list(map(message_to_json, messages))
        if new == list(map(message_to_json, self.messages())):
            return
        old = self.memory(without_summary=True)
        before = [_Compared(self.remembered(key)) for key in old]
        goes_on = continuation(before, list(map(_Compared, messages)))
        keeps_first, index = goes_on or (False, len(old))
        kept = [*old[:keeps_first], *old[index:]]
        out = trimmed.evicted if goes_on and trimmed is not None else ()
        evicted = [_Compared(entry.message) for entry in out if entry.message is not None]
        stay_away = old[keeps_first:][: len(left_out(before[keeps_first:index], evicted))]
        systems = {key for key in stay_away if self.rows[key].message.type == MessageType.SYSTEM}
        self.kept_out_through = max([self.kept_out_through, *({*stay_away} - systems)])
        if trimmed is not None and trimmed.is_limited:
            self.evicted_limit, self.evicted_by = trimmed.window.evicted_limit, trimmed.window.measure
        is_pinned = keeps_first or (kept != [] and kept[0] == self.pinned)
        in_history = goes_on is not None or self.next_key == 1
        if not in_history:
            self._cut()
        self.pinned, self.window, self.summary = kept[0] if is_pinned else None, kept[is_pinned:], None
        for message in messages[len(kept) :]:
            self.rows[self.next_key] = _Row(
                message, self.parent if in_history else None, in_history=in_history, on_path=in_history
            )
            self.window.append(self.next_key)
            self.next_key += 1
            self.parent = None if in_history else self.parent

    def clear(self) -> None:
        self.pinned, self.summary, self.window = None, None, []
        self._cut()
        self._empty(self._summaries())

    def head(self) -> int:
        """Return the newest message of the path; 0 without one."""
        return self.parent if self.parent is not None else max(self.history(), default=0)

    def newest_from(self, key: int) -> int:
        """Return the newest message that descends from *key*."""
        end = self._tree().newest_from(self.checked(key))
        return max((each for each in self.history() if each <= end), default=0)

    def checked(self, key: int, *, allow_in_memory: bool = False) -> int:
        """Return *key*, or raise ``MessageNotFoundError`` unless it is 0 or the key of a message of the history."""
        if key == 0 or (key in self.rows and self.rows[key].in_history):
            return key
        if allow_in_memory and key in self.memory():
            return key
        raise MessageNotFoundError(self.key, key)

    def moved(self, to: int, window: Window) -> _Moved | None:
        """Return the conversation as it would continue from *to*, without changing it; None if it does so already."""
        if self.checked(to) == self.head():
            return None
        tree = self._tree()
        path = tree.path_to(to)
        shared = to if to == 0 or self.rows[to].on_path else fork_point(tree.path_to(self.head()), path)
        entries = [self.entry(key, window) for key in self.memory(without_summary=True)]
        present, forgotten = Present(entries), tree.forgotten(to)
        eviction = moved(
            present,
            _Path(self, path, window),
            window.without_clearing(),
            to=to,
            shared=shared,
            forgotten=forgotten,
            next_key=self.next_key,
        )
        eviction.window = window
        front = {None if entry is None else entry.key for entry in (eviction.pinned, eviction.summary)}
        start = min((entry.key for entry in eviction.entries() if entry.key not in front), default=self.next_key)
        return _Moved(to, path, eviction, forgotten, self.kept_out_through if self.kept_out_through < start else 0)

    def go_on_from(self, to: int, window: Window) -> None:
        """Continue the conversation from message *to*."""
        move = self.moved(to, window)
        if move is not None:
            self.go_on(move)

    def go_on(self, move: _Moved) -> None:
        """Continue the conversation as *move* describes."""
        for key in self.history():
            self.rows[key].on_path = is_on(move.path, key)
        self.parent = move.to
        self.forgotten_through = move.forgotten_through
        self.kept_out_through = move.kept_out_through
        self._keep(move.eviction)

    def pending(self, window: Window, max_tokens: int, *, waits: bool) -> Pending | None:
        """See ``ChatMemoryStore.read_pending``."""
        behind = self._behind()
        failure = None if self.failure is None or self.failure.behind != behind else self.failure
        if waits and failure is not None and failure.lasts(self.next_key):
            return None
        uncovered = (to_entry(key, self.rows[key].message) for key in self._uncovered())
        entries, messages, has_more = take(uncovered, window, max_tokens, failure.times if failure else 0)
        if not entries:
            return None
        summary = None if self.summary is None else self.rows[self.summary].message
        previous = summary.text if isinstance(summary, SystemMessage) else None
        forgotten = self.forgotten_through
        return Pending(entries, messages, has_more, previous, self.summary, forgotten, behind, self.next_key, failure)

    def put_summary(self, pending: Pending, summary: SystemMessage, window: Window) -> bool:
        """See ``ChatMemoryStore.put_summary``."""
        keys = pending.keys
        if (self.summary, self.forgotten_through) != (pending.summary, pending.forgotten_through):
            return False
        if self._uncovered()[: len(keys)] != keys:
            return False
        eviction = self.eviction(window.without_clearing())
        key = eviction.put_summary(summary)
        if eviction.summary is None:
            return False
        self.rows[key] = _Row(summary, keys[-1], in_history=False, on_path=False, through=keys[-1])
        self.next_key = eviction.next_key
        self._keep(eviction)
        return True

    def found(self, key: int, *, with_counterparts: bool) -> list[int]:
        """Return the key of the message *key* and, if requested, those of its calls or results."""
        if key < 1:
            raise MessageNotFoundError(self.key, key)
        self.checked(key, allow_in_memory=True)
        if not with_counterparts:
            return [key]
        on_path = self.rows[key].on_path
        there = [each for each in self.history() if self.rows[each].on_path == on_path] or [key]
        position = there.index(key) if key in there else 0
        near = there[max(0, position - MAX_DISTANCE) : position + MAX_DISTANCE + 1] if key in there else [key]
        index = near.index(key)
        others = counterparts([self.rows[each].message for each in near], index)
        return sorted({key, *(near[other] for other in others)})

    def evict(self, count: int) -> list[int]:
        """Evict the first *count* messages of the memory, and return their keys."""
        evicted = self.memory()[:count]
        out = [key for key in evicted if self.rows[key].message.type != MessageType.SYSTEM]
        self.kept_out_through = max([self.kept_out_through, *out])
        self._leave(evicted)
        return evicted

    def remove(self, keys: Collection[int]) -> None:
        """Remove the messages *keys* from the memory and the history, and the summaries that cover them."""
        self._empty(summaries_with(keys, self._summaries(), self._tree()))
        for key in sorted(keys, reverse=True):
            self._remove(key)
        self.forgotten_through = self._tree().forgotten(self.head())

    def forget_history(self) -> None:
        """Discard everything that is not in the memory."""
        self.rows = {key: self.rows[key] for key in sorted(self.memory())}

    def _summaries(self) -> dict[int, int]:
        """Return the last message that each summary covers, by the key of the summary."""
        return {key: row.through for key, row in self.rows.items() if row.through is not None}

    def _empty(self, keys: Collection[int]) -> None:
        """Delete the content of *keys*, which are not used again."""
        self._leave(keys)
        for key in keys:
            self.rows[key] = _Row(REMOVED, in_history=False, on_path=False)

    def _cut(self) -> None:
        """Forget the path as far as it goes now."""
        head = self.head()
        if head in self.rows and head != self.forgotten_through:
            row = self.rows[head]
            row.parent, row.cleared_before = self._parent_of(head), row.cleared_before or self.next_key
            self.parent = self.forgotten_through = head

    def _parent_of(self, key: int) -> int:
        parent = self.rows[key].parent
        return max((each for each in self.history() if each < key), default=0) if parent is None else parent

    def _remove(self, key: int) -> None:
        row = self.rows[key]
        if not row.in_history:
            self._empty([key])
            return
        head = self.head()
        parent = self._parent_of(key)
        following = min((each for each in self.history() if each > key), default=0)
        for each in self.rows.values():
            if each.parent == key:
                each.parent = parent
                each.through = None if each.through is None else parent
        if following and self.rows[following].parent is None and row.parent is not None:
            self.rows[following].parent = parent
        if row.cleared_before is not None and parent:
            replacing = self.rows[parent]
            replacing.parent = self._parent_of(parent)
            replacing.cleared_before = min(row.cleared_before, replacing.cleared_before or row.cleared_before)
        self._empty([key])
        if head == key:
            self.parent = parent

    def _leave(self, keys: Collection[int]) -> None:
        """Remove the messages *keys* from the memory."""
        self.pinned = None if self.pinned in keys else self.pinned
        self.summary = None if self.summary in keys else self.summary
        self.window = [each for each in self.window if each not in keys]
        first = _Compared(self.rows[self.window[0]].message) if self.window else None
        if pins(first, pinned=self.pinned, summary=self.summary):
            self.pinned = self.window.pop(0)

    def _keep(self, eviction: Eviction) -> None:
        """Make the result of *eviction* the memory."""
        keys = [entry.key for entry in eviction.entries()]
        for key in eviction.cleared.keys() & self.rows.keys():  # new ones are stored later
            self.rows[key].is_cleared = True
        self.pinned = None if eviction.pinned is None else eviction.pinned.key
        self.summary = None if eviction.summary is None else eviction.summary.key
        self.window = [key for key in keys if key not in {self.pinned, self.summary}]
        if eviction.is_limited:
            self.evicted_limit, self.evicted_by = eviction.window.evicted_limit, eviction.window.measure

    def _covered(self) -> int:
        """Return the last message that the summary covers."""
        return 0 if self.summary is None else self.rows[self.summary].through or 0

    def _behind(self) -> int:
        """Return the last message that the summary covers, or that was cleared."""
        return max(self.forgotten_through, self._covered())

    def _uncovered(self) -> list[int]:
        """Return the keys of the messages that have left the memory and are not covered by a summary."""
        behind = self._behind()
        end = min(self.window, default=self.next_key)
        return [
            key
            for key, row in self.rows.items()
            if behind < key < end and row.on_path and row.message.type != MessageType.SYSTEM
        ]

    def history(self) -> list[int]:
        """Return the keys of the history, of all branches."""
        return [key for key, row in self.rows.items() if row.in_history]

    def _tree(self) -> Tree:
        named = [(key, row.parent) for key, row in self.rows.items() if row.in_history and row.parent is not None]
        cuts = {key: row.cleared_before for key, row in self.rows.items() if row.cleared_before is not None}
        return Tree(named, self.next_key, cuts)


class _Path:
    """See ``branches.Path``."""

    def __init__(self, conversation: StoredConversation, path: list[tuple[int, int]], window: Window) -> None:
        self._conversation = conversation
        self._window = window
        self._keys = [key for key in conversation.history() if is_on(path, key)]

    def systems(self, to: int, behind: int) -> Iterator[Entry]:
        return self._backwards(to, behind, systems=True)

    def backwards(self, to: int, behind: int) -> Iterator[Entry]:
        return self._backwards(to, behind, systems=False)

    def summary(self, to: int, behind: int) -> Summary | None:
        found = [
            (row.through, key)
            for key, row in self._conversation.rows.items()
            if row.through is not None and behind < row.through <= to and row.through in self._keys
        ]
        if not found:
            return None
        through, key = max(found)
        return Summary(self._conversation.entry(key, self._window), through)

    def _backwards(self, to: int, behind: int, *, systems: bool) -> Iterator[Entry]:
        rows = self._conversation.rows
        for key in reversed(self._keys):
            if behind < key <= to and (rows[key].message.type == MessageType.SYSTEM) == systems:
                yield self._conversation.entry(key, self._window)


class _Compared:
    """A message that is compared by its JSON: in Python, 1 and True are equal."""

    def __init__(self, message: ChatMessage) -> None:
        self.type = message.type
        self._json = message_to_json(message)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Compared) and other._json == self._json

    __hash__ = None  # type: ignore[assignment]
