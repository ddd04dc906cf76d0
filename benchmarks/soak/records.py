"""What workers and judge share: the conversations, the windows on them, and the lines of a worker's log."""

from __future__ import annotations

import random
import zlib
from base64 import b64encode
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from chatmemory_django.core.pending import Pending
from chatmemory_django.memory import ChatMemory, MessageWindowChatMemory, SummarizingChatMemory, TokenWindowChatMemory
from chatmemory_django.memory.base import MemoryOptions
from chatmemory_django.messages import AiMessage, ChatMessage, ImageContent, SystemMessage, TextContent
from chatmemory_django.stores.django import DjangoChatMemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from chatmemory_django.core.windows import Window

APPENDED = ("appended-1", "appended-2")
"""Conversations to which messages are only added."""

CONVERSATIONS = (*APPENDED, "any-1", "any-2", "any-3", "fleeting-1", "forgetful-1", "again-1", "again-2", "idle-1")
"""
All conversations: *fleeting* ones lose evicted rows; *forgetful* ones, too, except what some writers keep, and they are
not cleared; neither has branches. *again* are erased, copied, and created again; *idle* ones are erased if nobody wrote
to them for a moment.
"""

LOSING_ROWS = ("forgetful", "fleeting")
"""The kinds of conversation that lose rows."""


FILES = "files"
"""The folder of the files in messages."""

FILE_BYTES = 900
PICTURES = [b64encode(random.Random(number).randbytes(FILE_BYTES)).decode() for number in range(200)]
"""All files that there are: so few that workers add those that others have, or have just removed the last of."""


class JointWords:
    """Counts words; each costs *weight*. A list costs more than its messages do, so that no count can be stored."""

    weight = 1
    per_message = 1

    def estimate_token_count_in_text(self, text: str) -> int:
        return self.weight * len(text.split())

    def estimate_token_count_in_message(self, message: ChatMessage) -> int:
        calls = 4 * len(message.tool_execution_requests) if isinstance(message, AiMessage) else 0
        return 2 + calls + self.estimate_token_count_in_text(text_of(message))

    def estimate_token_count_in_messages(self, messages: Iterable[ChatMessage]) -> int:
        costs = [self.per_message + self.estimate_token_count_in_message(message) for message in messages]
        return 3 + sum(costs)


class Words(JointWords):
    """Counts words so that the counts can be stored and added up."""

    per_message = 0
    tokens_per_list = 3

    def __init__(self, name: str, weight: int) -> None:
        self.name = name
        self.weight = weight


SINGLE, DOUBLE = Words("soak-single", 1), Words("soak-double", 2)
ESTIMATORS = {estimator.name: estimator for estimator in (SINGLE, DOUBLE)}
LIMITS: tuple[tuple[int, JointWords | None, bool, int | None], ...] = (
    (5, None, False, None),
    (12, None, True, 7),
    (30, None, False, None),
    (60, SINGLE, False, None),
    (150, SINGLE, True, 90),
    (100, DOUBLE, False, 60),
    (400, DOUBLE, False, None),
    (90, JointWords(), False, 50),
)
"""
The windows: a limit, its estimator unless it counts messages, whether the system message stays first, and ``evict_to``.
"""


def memory_of(conversation: str, window: int, *, keep_history: bool = True) -> ChatMemory:
    """Return a memory of *conversation* through a window of ``LIMITS``."""
    limit, estimator, first, low = LIMITS[window]
    store = DjangoChatMemoryStore(keep_history=keep_history)
    options: MemoryOptions = {"id": conversation, "store": store, "evict_to": low}
    options["always_keep_system_message_first"] = first
    if estimator is None:
        return MessageWindowChatMemory(max_messages=limit, **options)
    return TokenWindowChatMemory(max_tokens=limit, token_count_estimator=estimator, **options)


WINDOWS: tuple[Window, ...] = tuple(memory_of("any", number).window() for number in range(len(LIMITS)))


class _Summaries(DjangoChatMemoryStore):
    """
    A store that hands over all messages that a summary covers, whole, since the judge knows them by their texts.

    Otherwise, large ones are shortened, and the first ones are left out after failures.
    """

    def read_pending(
        self, memory_id: object, window: Window, max_tokens: int, *, waits: bool = False
    ) -> Pending | None:
        pending = super().read_pending(memory_id, window, max_tokens, waits=waits)
        if pending is None:
            return None
        return pending._replace(messages=[entry.message for entry in pending.entries if entry.message is not None])


def summarizing(
    conversation: str, window: int, summarize: Callable[[str | None, list[ChatMessage]], str]
) -> SummarizingChatMemory:
    """Return a memory of *conversation* through a token window in ``LIMITS``, summarized by *summarize* on request."""
    limit, estimator, first, low = LIMITS[window]
    if estimator is None:
        raise ValueError(f"Window {window} has no tokens.")
    return SummarizingChatMemory(
        max_tokens=limit,
        token_count_estimator=estimator,
        summarize=summarize,
        summary_tokens=20,
        after_tokens=20,
        summarize_after_add=False,
        id=conversation,
        store=_Summaries(keep_history=True),
        evict_to=low,
        always_keep_system_message_first=first,
    )


def text_of(message: ChatMessage) -> str:
    """Return the text of a message, of the kinds that workers write."""
    if isinstance(message, (AiMessage, SystemMessage)):
        return message.text or ""
    return " ".join(content.text for content in message.contents if isinstance(content, TextContent))  # type: ignore[union-attr]


def pictures_in(message: ChatMessage) -> list[str]:
    """Return the files in a message, of the kinds that workers write, in Base64."""
    images = [each.image for each in getattr(message, "contents", ()) if isinstance(each, ImageContent)]
    return [*(image.base64_data or "" for image in images), *getattr(message, "attributes", {}).values()]


def label_of(text: str) -> str:
    """Return the first word of a message's text, which identifies it: ``WORKER-NUMBER/PART.INDEX``."""
    return text.partition(" ")[0]


def part_of(label: str) -> str:
    """Return the part of a verb that wrote a message: ``WORKER-NUMBER/PART``."""
    return label.rpartition(".")[0]


def summary_text(verb: str, previous: str | None, labels: Sequence[str]) -> str:
    """Return a summary by *verb*, whose text names what it covers: the label of another summary, and of messages."""
    covered = digest(repr([previous and label_of(previous), *labels]))
    return f"{verb}/0.0 {len(labels)}-{covered:08x}"


def digest(text: str) -> int:
    """Return a number that identifies *text*."""
    return zlib.crc32(text.encode())


def has_all_rows(conversation: str) -> bool:
    """Return whether all writers keep the rows of evicted messages."""
    return not conversation.startswith(LOSING_ROWS)


Place: TypeAlias = tuple[int, int] | None
"""A conversation's key and version, or None for a missing conversation."""

Kind = Literal[
    "add",
    "turn",
    "set",
    "clear",
    "evict",
    "rewind",
    "switch",
    "pop",
    "remove",
    "pin",
    "unpin",
    "summarize",
    "recount",
    "title",
    "erase",
    "erase idle",
    "copy",
    "fork",
]


class Intent(msgspec.Struct, tag="intent", omit_defaults=True):
    """A verb that a worker is about to do."""

    id: str
    verb: str
    """The id of its first attempt, with which its messages are labelled."""
    kind: Kind
    conversation: str
    window: int
    before: Place
    """The conversation before it started: before its transaction."""
    keep_history: bool = True
    parts: list[str] = []
    """The messages of each of its writes, as JSON."""
    client_ids: list[str] = []
    metadata: bool = False
    """Whether they are stored with the name of their part as metadata."""
    attempts: int = 0
    """The number of earlier attempts."""
    fails: bool = False
    """Whether it is a turn that fails after its messages, or a summary that never arrives."""
    to: int | None = None
    """The message that it rewinds to, adds after, removes, pins, or copies up to."""
    count: int = 0
    """How many messages it evicts."""
    with_results: bool = False
    """Whether it also removes what belongs to that message."""
    cutoff: str = ""
    """The time since which an idle conversation must not have been written to, in ISO format."""


State = Literal["acknowledged", "maybe", "undone"]


class Outcome(msgspec.Struct, tag="outcome", omit_defaults=True):
    """The result of a verb. For one without an outcome, it is unknown whether it was done."""

    id: str
    states: list[State]
    """The state of each of its writes; missing ones are "undone"."""
    after: Place
    answer: list[int] = []


class Fault(msgspec.Struct, tag="fault", omit_defaults=True):
    """An error that a worker met."""

    kind: str
    in_transaction: bool
    """Whether the transaction was the worker's own."""
    is_known: bool
    detail: str = ""
    verb: str = ""
    is_dirty: bool = False
    """Whether the worker had asked for uncommitted data."""


class Seen(msgspec.Struct, tag="seen", omit_defaults=True):
    """A memory that was read, as labels, and the conversation before and after that."""

    conversation: str
    window: int
    before: Place
    after: Place
    labels: list[str]
    is_dirty: bool = False
    """Whether the reader had asked for uncommitted data."""
    reader: str = ""
    rewound_to: int | None = None
    """The message that a turn continues from, which sees the memory as if it were rewound."""


class Announced(msgspec.Struct, tag="announced"):
    """The signal ``messages_added``."""

    conversation: int
    sequences: list[int]


Record: TypeAlias = Intent | Outcome | Fault | Seen | Announced
encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Intent | Outcome | Fault | Seen | Announced)


def unfinished(path: Path) -> list[Intent]:
    """Return the adds with client ids in a log whose outcome is unknown."""
    found: dict[str, Intent] = {}
    for record in read_log(path):
        if isinstance(record, Intent) and record.client_ids:
            found[record.id] = record
        elif isinstance(record, Outcome) and "maybe" not in record.states:
            found.pop(record.id, None)
    return list({intent.verb: intent for intent in found.values()}.values())


def read_log(path: Path) -> list[Record]:
    """Yield the records of a worker; a killed one may have left half a line at the end."""
    lines = path.read_bytes().split(b"\n")
    return [_decoder.decode(line) for line in lines[:-1]]
