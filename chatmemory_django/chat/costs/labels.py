"""The labels of a site's own on the calls of models, by which they are summed up: for example tenant and feature."""

from __future__ import annotations

import re
from collections.abc import Mapping

from chatmemory_django.core.limits import is_storable

MAX_LABELS = 8
"""How many labels a call has at most."""

MAX_LABEL_LENGTH = 100
"""The longest value of a label, in characters."""

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")
"""The names of labels: they are part of a URL, and of a path in JSON."""


def checked_labels(given: object) -> dict[str, str]:
    """Return the labels *given*, in the order of their names; ``ValueError`` if they are invalid."""
    if not isinstance(given, Mapping):
        raise ValueError(f"labels are a dict of texts like {{'tenant': 'acme'}}, not {given!r}.")  # noqa: TRY004
    if len(given) > MAX_LABELS:
        raise ValueError(f"A call has at most {MAX_LABELS} labels, with the assistant's name, not {len(given)}.")
    for name, value in given.items():
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ValueError(
                f"The name of a label is a letter, and then at most 31 letters, digits, '_' and '-', not {name!r}."
            )
        if not isinstance(value, str) or not 1 <= len(value) <= MAX_LABEL_LENGTH or not is_storable(value):
            raise ValueError(f"The label {name!r} is a text of 1 to {MAX_LABEL_LENGTH} characters, not {value!r}.")
    return dict(sorted(given.items()))


def label_in(text: object) -> str | None:
    """Return the name of the label that *text* is about, as in ``"label:tenant"``; None if it is about none."""
    kind, _, name = text.partition(":") if isinstance(text, str) else ("", "", "")
    return name if kind == "label" and NAME.fullmatch(name) else None
