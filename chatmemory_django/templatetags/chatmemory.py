"""Filters for the templates of the admin."""

from __future__ import annotations

import datetime

from django import template
from django.utils.formats import number_format

register = template.Library()


@register.filter
def grouped(number: int) -> str:
    """Return *number* with its digits grouped as in the current language."""
    return str(number_format(number, force_grouping=True))


@register.filter
def link(sequence: int) -> str:
    """Return the query and fragment of the URL at which the transcript of all branches shows the message *sequence*."""
    from chatmemory_django.admin import navigation

    return navigation.link_to(sequence, all_branches=True)


@register.filter
def moment(value: datetime.datetime) -> str:
    """Return *value* formatted as on every page of the admin."""
    # Imported here, since Django imports this module on every site, even if its admin is not installed.
    from chatmemory_django.admin import wording

    return wording.moment(value)
