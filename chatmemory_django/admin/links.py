"""URLs within the transcript of a conversation."""

from __future__ import annotations

PAGE = 50
"""Number of messages on a page."""

ALL_BRANCHES = "branches=all"
"""The query parameter of URLs that show all branches."""


def link_to(sequence: int, *, all_branches: bool = False) -> str:
    """
    Return the end of a URL of the transcript page that has the message *sequence* in its middle.

    Messages that are not on the current path are only in the transcript of *all_branches*.
    """
    branches = f"&{ALL_BRANCHES}" if all_branches else ""
    return f"?after={max(0, sequence - 1 - PAGE // 2)}{branches}#m-{sequence}"
