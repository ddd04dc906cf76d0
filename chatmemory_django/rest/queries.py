"""Serializers of query parameters."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from chatmemory_django import conf
from chatmemory_django.core.excerpts import MAX_SEARCH
from chatmemory_django.core.limits import MAX_INTEGER
from chatmemory_django.models.messages import MATCHES


class ShownQuery(serializers.Serializer[Any]):
    """The representation of messages."""

    media = serializers.ChoiceField(
        choices=["url", "inline"],
        required=False,
        help_text="Represent files as URLs, or as Base64 inside of messages.",
    )

    def get_fields(self) -> dict[str, Any]:
        """See ``Serializer``. The parameter's name is a keyword of Python."""
        form = serializers.ChoiceField(
            choices=conf.FORMATS, required=False, help_text="The format of `message`; by default, the site's."
        )
        return {"as": form, **super().get_fields()}


class MessagesQuery(ShownQuery):
    """The representation of messages, and which to list."""

    all_branches = serializers.BooleanField(required=False, help_text="Include messages on other branches.")


class RemovalQuery(serializers.Serializer[Any]):
    """What to remove."""

    with_results = serializers.BooleanField(
        required=False, help_text="Also remove the results of its tool calls, or the call that it answers."
    )


class MemoryQuery(ShownQuery):
    """The window through which to read a memory; by default its own."""

    max_messages = serializers.IntegerField(required=False, min_value=1, max_value=MAX_INTEGER)
    max_tokens = serializers.IntegerField(required=False, min_value=1, max_value=MAX_INTEGER)
    explain = serializers.BooleanField(
        required=False, help_text="Explain for each recent message whether and why it is sent."
    )


class MatchQuery(serializers.Serializer[Any]):
    """How a search matches. It is not a filter: nothing is erased by it."""

    match = serializers.ChoiceField(
        choices=MATCHES,
        required=False,
        help_text="With `any`, `search` finds the 100 messages that answer best with any of the words.",
    )


class SearchQuery(MatchQuery):
    """What to search for."""

    search = serializers.CharField(
        max_length=MAX_SEARCH,
        help_text="Words or parts of words, all of which must occur; words in quotation marks as they stand.",
    )


class ImportQuery(serializers.Serializer[Any]):
    """Options of an import."""

    rename = serializers.BooleanField(required=False, help_text="Give every conversation a new memory id.")
