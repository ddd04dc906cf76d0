"""
What guards decide: functions of a site that see each question before it is stored, and each answer before it is shown.

A guard returns one of these, or None to let pass what it has seen.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from django.utils.functional import Promise

from chatmemory_django.chat.model import ContentFilterError
from chatmemory_django.messages import UserMessage

TIMEOUT = 10.0
"""How many seconds a guard has, unless it is given others."""


@dataclass(frozen=True)
class Refuse:
    """Do not take the question, or the answer. People are shown *text*; by default, that it is not allowed."""

    text: str | Promise = ""


@dataclass(frozen=True)
class Rewrite:
    """
    Take *text* in its place.

    In a question, it takes the place of all its texts, and files stay; a ``UserMessage`` takes the place of all of it.
    """

    text: str | Promise | UserMessage


@dataclass(frozen=True)
class Retry:
    """Ask the model once more, and send it *note* with the question. It is not stored. For answers alone."""

    note: str


Verdict: TypeAlias = Refuse | Rewrite | Retry | None
GuardFunction: TypeAlias = Callable[..., Verdict] | Callable[..., Awaitable[Verdict]]
"""
A function, sync or async, of parameters with any of the names ``memory_id``, ``owner``, ``request`` and ``question``
and, for answers, ``answer``, the ``AiMessage``.
"""


@dataclass(frozen=True)
class Guard:
    """
    A *function* that guards, with at most *timeout* seconds.

    If it raises or takes longer, it refuses, unless it *fails_open*: then it lets pass what it should have seen.
    """

    function: GuardFunction
    timeout: float = TIMEOUT
    fails_open: bool = False


class GuardRefusedError(ContentFilterError):
    """A guard has refused the question, or the answer. *text* is for people, and empty if the guard has given none."""

    def __init__(self, message: str, text: str | Promise = "") -> None:
        super().__init__(message)
        self.text = text
