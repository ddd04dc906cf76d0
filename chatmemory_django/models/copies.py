"""
What other apps keep of conversations, outside of their messages: streams of answers, records, and the like.

An app that keeps such copies registers in its ``AppConfig.ready`` how it forgets them. Whoever erases conversations, or
removes messages from them, calls ``forget_copies``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Forget(Protocol):
    """
    Deletes what an app keeps of *conversations*, memory ids by key, in the database *using*.

    It is called in the transaction that erases the conversations or removes messages from them. What is not stored in
    that database has to be deleted after the commit, with ``transaction.on_commit(…, robust=True)``. It may be called
    again for the same conversations.

    If *erased*, nothing may be left, and what is being written now must stop. Otherwise single messages were removed:
    nothing may be left that may hold their text, but an answer that is being generated goes on.
    """

    def __call__(self, using: str, conversations: Mapping[int, str], *, erased: bool) -> None: ...


_forgets: list[Forget] = []


def keeps_copies(forget: Forget) -> None:
    """Register *forget*, which deletes what an app keeps of conversations."""
    if forget not in _forgets:
        _forgets.append(forget)


def forget_copies(using: str, conversations: Mapping[int, str], *, erased: bool = False) -> None:
    """
    Delete all copies of *conversations*, memory ids by key, in the database *using*; call it in the transaction that
    changes them.

    They are *erased*, or messages were removed from them.
    """
    if conversations:
        for forget in _forgets:
            forget(using, conversations, erased=erased)
