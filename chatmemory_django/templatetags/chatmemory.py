"""What the templates of the admin need beside Django's own."""

from __future__ import annotations

import datetime

from django import template
from django.utils.formats import number_format

register = template.Library()


@register.filter
def grouped(number: int) -> str:
    """*number* with its digits grouped as the language does."""
    return str(number_format(number, force_grouping=True))


@register.filter
def place(sequence: int) -> str:
    """Where the message *sequence* is in the transcript of all branches, as the end of an address."""
    from chatmemory_django.admin import transcript

    return transcript.place_of(sequence, all_branches=True)


@register.filter
def moment(value: datetime.datetime) -> str:
    """*value* as every page of the admin shows a moment."""
    # Django imports this module on every site, also where its admin is not installed.
    from chatmemory_django.admin import wording

    return wording.moment(value)
