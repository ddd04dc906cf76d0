"""
What a request of an answer sends: the memory as it is arranged around the answer that is running.

    system message · summary · earlier messages · context and question · the answer's own calls and results

Nothing here reads or writes a database: it is the same for the same messages, and what it shortens stays whole in its
row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from chatmemory_django.chat.answers.arranging import Arranged, SentWindow, Shortened
from chatmemory_django.core.windows import Entry, Window
from chatmemory_django.messages import ChatMessage


class Sent(NamedTuple):
    """What one request sends."""

    messages: list[ChatMessage]
    left_out: int
    """How many earlier messages of the memory did not fit beside the answer."""
    shortened: dict[int, Shortened]
    """The results that are sent shortened, by their keys in the memory."""
    keys: list[int]
    """Of each message in the memory; a result that is made here has that of its call."""


def to_send(
    memory: Sequence[Entry],
    begun: int,
    window: Window,
    *,
    summary_key: int | None = None,
    context: str | None = None,
    pending: Mapping[tuple[int, int], str] = MappingProxyType({}),
    extra: Callable[[ChatMessage], int] = lambda _: 0,
    overhead: int = 0,
    max_result_tokens: int | None = None,
    starts_on_user: bool = False,
) -> Sent:
    """
    Return what to send of *memory*, whose messages from the key *begun* on, the question, are of the running answer.

    The last system message that is not the summary (*summary_key*) comes first. *context* is a text in front of the
    question's contents. Every call has one result, directly behind its message and in the order of the calls; one that
    is not stored is an error with the text that *pending* has for the key of the message and the position of the call,
    by default ``UNKNOWN``. Results without a call are left out, and with *starts_on_user* earlier messages before the
    first of a user.

    Results have at most *max_result_tokens*: by default a quarter of a window of tokens, and no limit in a window of
    messages, where a token counts as four characters. Earlier messages leave by the rules of *window* to make room for
    those of the answer, which never do. A window of messages may then be exceeded. In a window of tokens, *extra* is
    what the model is sent with a message in addition to what the window counts, and *overhead* with all of them; if the
    answer's own messages do not fit, its results are shortened further, the largest first.

    Messages that stay are sent unchanged from one request to the next, as long as there is no need to shorten more.

    Raises:
        QuestionTooLongError: The question does not fit, with the system message, *context* and *overhead*.
        AnswerTooLongError: The answer's own messages do not fit, even with all results shortened.

    """
    arranged = Arranged(SentWindow(window, extra, overhead), memory, begun, summary_key, pending)
    arranged.put_context(context)
    arranged.bound_results(max_result_tokens)
    left_out = 0
    if not arranged.fits:
        left_out = arranged.make_room()
        arranged.fit()
    if starts_on_user:
        arranged.start_on_user()
    parts = arranged.parts()
    return Sent([part.message for part in parts], left_out, arranged.cut(), [part.key for part in parts])
