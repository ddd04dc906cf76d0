"""What the templates of the admin need beside Django's own."""

from __future__ import annotations

from django import template
from django.utils.formats import number_format

register = template.Library()


@register.filter
def grouped(number: int) -> str:
    """*number* with its digits grouped as the language does."""
    return str(number_format(number, force_grouping=True))
