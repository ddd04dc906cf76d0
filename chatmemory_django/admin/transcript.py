"""
Pages of the transcript of a conversation.

Pages are cut by sequence, so each costs the same for a history of any length. The amount of data read for a page is
bounded: short texts of all messages, but long texts and JSON only up to ``PAGE_BYTES`` in total.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.db.models import BooleanField, ExpressionWrapper, Q, QuerySet
from django.db.models.functions import Length

from chatmemory_django.admin.additions import waits_in
from chatmemory_django.admin.bubbles import Bubble, ShownPart
from chatmemory_django.admin.markdown import Markdown
from chatmemory_django.admin.navigation import PAGE, has_branches, shown
from chatmemory_django.admin.reasons import WORDS, explains_others, read_reasons
from chatmemory_django.admin.wording import EXCERPT, excerpt
from chatmemory_django.core.reasons import Reader, Reason
from chatmemory_django.core.tool_calls import tool_answers
from chatmemory_django.messages import ChatMessage, CustomMessage, MessageType
from chatmemory_django.models import Conversation, MemoryStatus, Message, MessageQuerySet
from chatmemory_django.models.columns import to_message
from chatmemory_django.models.fields import names_of_texts
from chatmemory_django.models.messages import if_short
from chatmemory_django.provider import known_reader

PAGE_BYTES = 8 * 1024 * 1024
"""Maximum size of long texts and JSON that are read for a page. Of further messages, only short texts are shown."""

LATER = 100
"""Number of messages after a page that are searched for the results of its tool calls."""


@dataclass(kw_only=True)
class TranscriptPage:
    """Messages in order, and where those before and after them are."""

    bubbles: list[Bubble]
    before: int | None
    """Messages before this sequence are on older pages; None if there are none."""
    after: int | None
    """Messages after this sequence are on newer pages; None if there are none."""
    has_branches: bool
    """Whether the conversation may have branches other than the current one."""


def read_page(
    conversation: Conversation,
    reader: Reader | None,
    *,
    before: int | None = None,
    after: int | None = None,
    is_readable: bool,
    all_branches: bool = False,
) -> TranscriptPage:
    """
    Return the newest messages of *conversation*, the newest *before* a sequence, or the oldest *after* one.

    Only messages on the current path are included, unless *all_branches* is true. With a *reader* of the memory, each
    message in it is explained.
    """
    transcript = shown(conversation, all_branches=all_branches)
    has_others = has_branches(conversation)
    rows = _rows(transcript, is_readable=is_readable)
    found, has_older, has_newer = _cut(rows, before, after)
    if has_newer is None:  # without branches, the newest message is the last one written
        last = found[-1].sequence
        has_newer = last < _last(conversation) and (not has_others or rows.filter(sequence__gt=last).exists())
    if not found:
        return TranscriptPage(bubbles=[], before=None, after=None, has_branches=has_others)
    bubbles = _bubbles(conversation, found, reader if is_readable else None)
    if all(bubble.why.is_sent for bubble in bubbles):  # where all are, "in the memory" is only noise
        for bubble in bubbles:
            bubble.is_marked = bubble.why.short is not WORDS[Reason.IN_WINDOW].short
    if has_others:
        places = conversation.places(found)
        for bubble in bubbles:
            bubble.place = places.get(bubble.row.sequence)
    messages: list[ChatMessage | None] = [None] * len(found)
    if is_readable:
        whole, markdown = _whole(conversation, found), Markdown()
        for index in reversed(range(len(found))):  # the newest first, as long as MAX_RENDERED lasts
            messages[index] = _read(bubbles[index], whole.get(found[index].sequence), markdown)
        _pair(conversation, transcript, bubbles, messages)
    _wait(conversation, bubbles, is_readable=is_readable)
    return TranscriptPage(
        bubbles=_unpaired(bubbles),
        before=found[0].sequence if has_older else None,
        after=found[-1].sequence if has_newer else None,
        has_branches=has_others,
    )


def read_bubble(conversation: Conversation, row: Any, limit: int) -> Bubble:
    """Return the bubble of *row*, read in full with its status; texts are plain and cut to *limit* characters."""
    (bubble,) = _bubbles(conversation, [row], known_reader(conversation.memory_id))
    bubble.begins_memory = False
    try:
        bubble.fill(row.chat_message, limit)
    except ValueError:
        bubble.fill_broken(row.text, limit)
    _wait(conversation, [bubble])
    return bubble


def _last(conversation: Conversation) -> int:
    return conversation.next_sequence - 1


def _cut(rows: QuerySet[Message], before: int | None, after: int | None) -> tuple[list[Any], bool, bool | None]:
    """Return the rows of a page, and whether there are older and newer ones; None if the latter is unknown."""
    if after is not None:
        found = list(rows.filter(sequence__gt=after).order_by("sequence")[: PAGE + 1])
        has_older = after > 0 and bool(found) and rows.filter(sequence__lt=found[0].sequence).exists()
        return found[:PAGE], has_older, len(found) > PAGE
    earlier = rows if before is None else rows.filter(sequence__lt=before)
    found = list(earlier.order_by("-sequence")[: PAGE + 1])
    return found[:PAGE][::-1], len(found) > PAGE, None if before is not None and found else False


def _rows(rows: MessageQuerySet, *, is_readable: bool) -> QuerySet[Message]:
    """Return *rows* with the fields that a page needs, including their short texts if *is_readable*."""
    rows = rows.with_status().defer("metadata", *names_of_texts(Message))
    if not is_readable:
        return rows
    # Not cut in the database: if the field is a subclass, only its Python code can decode the value.
    return rows.with_size().annotate(
        text_length=Length("text"),
        payload_length=Length("payload"),
        short_text=if_short("text", EXCERPT),
        has_metadata=ExpressionWrapper(Q(metadata__isnull=False), output_field=BooleanField()),
    )


def _bubbles(conversation: Conversation, rows: list[Any], reader: Reader | None) -> list[Bubble]:
    """Return the bubbles of *rows* without their contents."""
    # Pinned messages are always sent, and evicted ones only if the window has grown; the rest depends on it, too.
    depends = any(row.status == MemoryStatus.IN_MEMORY for row in rows)
    depends = reader is not None and (depends or explains_others(conversation, reader))
    reasons = read_reasons(conversation, reader) if depends and reader is not None else {}
    bubbles = []
    was_in_window = True  # unknown for the messages on the previous page
    for row in rows:
        bubble = Bubble.of(row, reasons.get(row.sequence))
        is_in_window = row.sequence >= conversation.window_start
        bubble.begins_memory = is_in_window and (not was_in_window or 1 < row.sequence == conversation.window_start)
        was_in_window = is_in_window
        bubbles.append(bubble)
    return bubbles


def _unpaired(bubbles: list[Bubble]) -> list[Bubble]:
    """Return those of *bubbles* that are not displayed with a call."""
    unpaired, begins_memory = [], False
    for bubble in bubbles:
        begins_memory = begins_memory or bubble.begins_memory
        if not bubble.is_paired:
            bubble.begins_memory, begins_memory = begins_memory, False
            unpaired.append(bubble)
    return unpaired


def _is_short(row: Any) -> bool:
    """Return whether *row* is only a text, which has been read."""
    return row.payload_length is None and not row.has_metadata and row.short_text is not None


def fitting(rows: Iterable[Any]) -> list[int]:
    """Return the sequences of those of *rows*, which have a size, that fit into ``PAGE_BYTES``, in their order."""
    wanted, size = [], 0
    for row in rows:
        if size + row.size <= PAGE_BYTES:
            wanted.append(row.sequence)
            size += row.size
    return wanted


def _whole(conversation: Conversation, rows: list[Any]) -> dict[int, Message]:
    """Return those of *rows* that are more than a short text, read in full: the newest ones that fit."""
    wanted = fitting(row for row in reversed(rows) if not _is_short(row))
    if not wanted:
        return {}
    found = conversation.messages.filter(sequence__in=wanted).order_by()
    return {row.sequence: row for row in found.only("sequence", "type", "text", "payload", "metadata")}


def _read(bubble: Bubble, whole: Message | None, markdown: Markdown) -> ChatMessage | None:
    """Fill *bubble* from its row, or from *whole* if given; return the message if all of it could be read."""
    row = bubble.row
    if whole is None and not _is_short(row):
        bubble.is_omitted = True
        bubble.parts = [] if row.short_text is None else [ShownPart(text=excerpt(row.short_text))]
        return None
    text, payload = (row.short_text, None) if whole is None else (whole.text, whole.payload)
    bubble.fill_metadata(None if whole is None else whole.metadata)
    try:
        message = to_message(row.type, text, payload)
        bubble.fill(message, markdown=markdown)
    except (KeyError, ValueError):
        bubble.fill_broken(text)
        return None
    return message


def _pair(
    conversation: Conversation,
    transcript: MessageQuerySet,
    bubbles: list[Bubble],
    messages: list[ChatMessage | None],
) -> None:
    """Put results into the bubbles of their calls, and note for the other calls where their results are."""
    answers = _answers(messages)
    for (index, number), answer in answers.items():
        bubbles[index].calls[number].answer = bubbles[answer]
        bubbles[answer].is_paired = True
    if all(call.answer for bubble in bubbles for call in bubble.calls):
        return
    later, is_all = _later(conversation, transcript, bubbles[-1].row.sequence)
    answers = _answers([*messages, *later.values()])
    sequences: list[int] = [*(bubble.row.sequence for bubble in bubbles), *later]
    unread = {message is None and bubble.row.type == _RESULT for bubble, message in zip(bubbles, messages, strict=True)}
    for index, bubble in enumerate(bubbles):
        for number, call in enumerate(bubble.calls):
            result = answers.get((index, number))
            if result is None:
                call.is_unanswered = is_all and True not in unread
            elif call.answer is None:
                call.answered_by = sequences[result]


def _wait(conversation: Conversation, bubbles: list[Bubble], *, is_readable: bool = True) -> None:
    """Note for what calls wait that have no result on the page; whose calls are not read, any message may have one."""
    calling = {
        bubble.row.sequence: bubble
        for bubble in bubbles
        if (_lacks_result(bubble) if is_readable else bubble.row.type == MessageType.AI)
    }
    for (sequence, place), words in waits_in(conversation, calling.keys()).items():
        calling[sequence].wait(place, words)


def _lacks_result(bubble: Bubble) -> bool:
    return any(call.answer is None and call.answered_by is None for call in bubble.calls)


_RESULT = MessageType.TOOL_EXECUTION_RESULT.value


def _answers(messages: list[ChatMessage | None]) -> dict[tuple[int, int], int]:
    # An empty message stands for each that could not be read.
    return tool_answers([message or CustomMessage({}) for message in messages])


def _later(
    conversation: Conversation, transcript: MessageQuerySet, last: int
) -> tuple[dict[int, ChatMessage | None], bool]:
    """Return calls and results among the ``LATER`` messages after *last* by sequence, and whether those are all."""
    end = last + LATER
    if last == _last(conversation):
        return {}, True
    rows = transcript.filter(
        sequence__gt=last, sequence__lte=end, type__in=[MessageType.AI.value, _RESULT], payload__isnull=False
    ).order_by("sequence")
    later: dict[int, ChatMessage | None] = {}
    for sequence, kind, text in rows.values_list("sequence", "type", if_short("payload", 2 * EXCERPT)):
        try:
            later[sequence] = None if text is None else to_message(kind, "", text)
        except ValueError:
            later[sequence] = None
    return later, end >= _last(conversation) and None not in later.values()
