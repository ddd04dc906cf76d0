"""The site that is measured, and what was recorded about it."""

from __future__ import annotations

from collections import Counter

from django.conf import settings
from django.contrib.auth.models import User
from django.db import connections
from rest_framework.authtoken.models import Token

from benchmarks.chat.client import Exchange
from benchmarks.chat.judge import Findings, judge


class Site:
    """One user, whose conversations are in the database *using*."""

    def __init__(self, using: str) -> None:
        self.using = using
        self.findings = Findings()
        self.done: Counter[str] = Counter()
        """The actions taken, with their counts."""
        self.stopped: set[str] = set()
        """The conversations with a stopped answer."""
        self.most_connections: int | None = None
        pool = settings.DATABASES["default"].get("OPTIONS", {}).get("pool")
        if pool is not None:
            self.most_connections = pool["max_size"]
        user = User.objects.db_manager(using).create_user("ann")
        self.token = Token.objects.using(using).create(user=user).key
        connections.close_all()

    def note(self, exchange: Exchange, expected: set[int], what: str) -> None:
        """Record a response that is not *expected*."""
        kind = f"response {what}: {exchange.status or 'none'}"
        self.findings.check(kind, exchange.received[-300:], holds=exchange.status in expected)
        self.findings.check(f"error {what}", exchange.received[-300:], holds=b'"type":"error"' not in exchange.received)

    def judge(self) -> None:
        """Check everything stored."""
        judge(self.using, self.stopped, self.findings)
        connections.close_all()
