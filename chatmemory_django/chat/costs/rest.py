"""What calls of models used and cost, by REST."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from chatmemory_django import conf
from chatmemory_django.chat.conf import COST_PLACES
from chatmemory_django.chat.costs.conf import costs
from chatmemory_django.chat.costs.labels import NAME
from chatmemory_django.chat.costs.usage import BY, usage
from chatmemory_django.core.limits import MAX_INTEGER
from chatmemory_django.rest.fields import MomentField
from chatmemory_django.rest.filters import EVERYBODY, owned_by_key
from chatmemory_django.rest.pagination import linked
from chatmemory_django.rest.views import ChatMemoryView


class UsageQuery(serializers.Serializer[Any]):
    """What to count."""

    by = serializers.RegexField(
        f"^({'|'.join(BY)}|label:{NAME.pattern})$",
        required=False,
        help_text="What to group by: `day`, the default, `model`, `conversation`, `user`, `purpose`, `outcome`, or a "
        "label of the site, such as `label:tenant`.",
    )
    since = MomentField(required=False, help_text="Start of the period, inclusive; by default, 30 days before its end.")
    until = MomentField(required=False, help_text="End of the period, exclusive; by default, now.")
    page_size = serializers.IntegerField(
        required=False, min_value=1, max_value=MAX_INTEGER, help_text="Maximum number of rows."
    )
    offset = serializers.IntegerField(
        required=False, min_value=0, max_value=MAX_INTEGER, help_text="How many rows to skip; `next` has it."
    )
    owner = serializers.CharField(
        required=False, max_length=255, help_text="Calls for the user with this key, or `*` for all. Staff only."
    )


class UsageRowSerializer(serializers.Serializer[Any]):
    """What the calls of a day, a model, a conversation, a user, a purpose, an outcome or a label used and cost."""

    key = serializers.CharField(
        allow_null=True,
        help_text="Null for calls whose conversation or owner was erased, or that had none, or not the label.",
    )
    calls = serializers.IntegerField(
        help_text="Failed and cancelled calls included. Tokens that were not reported are estimates."
    )
    failed = serializers.IntegerField(help_text="How many of the calls have failed.")
    uncounted = serializers.IntegerField(
        help_text="How many of the calls have no counts: they were refused, or nothing is known of them."
    )
    unpriced = serializers.IntegerField(help_text="How many of the calls have no cost.")
    input = serializers.IntegerField(help_text="Tokens of input.")
    cached_input = serializers.IntegerField(help_text="The part of the input that was read from the vendor's cache.")
    cache_write = serializers.IntegerField(help_text="The part of the input that was written to the vendor's cache.")
    cache_write_1h = serializers.IntegerField(help_text="The part of what was written that is kept for an hour.")
    output = serializers.IntegerField(help_text="Tokens of output.")
    reasoning = serializers.IntegerField(help_text="The part of the output that was thinking.")
    cost = serializers.DecimalField(
        max_digits=None, decimal_places=COST_PLACES, allow_null=True, help_text="Null if no cost is known."
    )


class UsageSerializer(serializers.Serializer[Any]):
    """What calls of models used and cost in a period."""

    by = serializers.CharField()
    since = MomentField()
    until = MomentField()
    page_size = serializers.IntegerField(help_text="The maximum number of rows.")
    currency = serializers.CharField(help_text="That of `cost`, as the site names it; empty if it does not.")
    next = serializers.URLField(allow_null=True, help_text="The URL of the rows after these; null if there are none.")
    results = UsageRowSerializer(many=True)


class UsageView(ChatMemoryView):
    """What calls of models used and cost."""

    tag = "usage"
    serializer_class = UsageSerializer
    query_serializers = {"get": UsageQuery}  # noqa: RUF012
    throttle_scope = "usage"  # it reads every call of the requested time

    def get(self, request: Request) -> Response:
        """
        Sum up tokens and costs by day, model, conversation, user, purpose, outcome or label.

        Days are those of UTC; by default, the last 30 days count. At most `page_size` rows are returned; `next` is the
        URL of the following ones, or null.
        """
        asked, limits = self.query, conf.rest()
        limit = min(asked.get("page_size", limits.PAGE_SIZE), limits.MAX_PAGE_SIZE)
        offset = asked.get("offset", 0)
        by = asked.get("by", "day")
        until = asked.get("until", datetime.now(UTC))
        since = asked.get("since", until - timedelta(days=30))
        calls = self.policy.calls(request)
        if (owner := asked.get("owner")) is None:
            calls = calls.owned_by(request.user)  # even if staff could see those of others
        elif owner != EVERYBODY:
            calls = owned_by_key(calls, owner)
        rows = list(usage(calls, by, since=since, until=until, limit=limit + 1, offset=offset))
        url = None
        if len(rows) > limit:
            # The period is fixed, so that new calls move no row from one page to another.
            moments = {"since": since.isoformat(), "until": until.isoformat()}
            url = linked(request, **moments, page_size=limit, offset=offset + limit)
        results = [{**row._asdict(), "cost": None if row.cost is None else f"{row.cost:f}"} for row in rows[:limit]]
        return Response(
            {"by": by, "since": since, "until": until, "page_size": limit, "currency": costs().CURRENCY}
            | {"next": url, "results": results}
        )
