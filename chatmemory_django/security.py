"""What an operator has to see of attacks: a line of the log ``chatmemory.security`` and a signal for each, no text."""

from __future__ import annotations

import logging
from enum import StrEnum
from http import HTTPStatus
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from django.utils.functional import LazyObject

from chatmemory_django import conf
from chatmemory_django.signals import security_event

if TYPE_CHECKING:
    from django.http import HttpRequest

logger = logging.getLogger("chatmemory.security")

SHOWN = 255
"""How many characters of a memory id are reported: as many as one has at most, while a URL may be longer."""


class SecurityEvent(StrEnum):
    """What has happened."""

    CREDENTIALS = "credentials"
    """A token or a password was wrong."""
    CSRF = "csrf"
    """A request with a session had no valid CSRF token, or came from another origin."""
    FORBIDDEN = "forbidden"
    """The access policy, or a permission, has refused a request: 403."""
    RATE = "rate"
    """A rate, or the number of open streams or answers, was exceeded: 429."""
    QUOTA = "quota"
    """A user would have stored more than the policy allows."""
    BUDGET = "budget"
    """A budget was used up."""
    DECISION = "decision"
    """A decision was about a call that does not wait for it, or not for this user: forged, or sent once more."""
    ALTERED = "altered"
    """What is stored is not what was stored there: a value that does not authenticate, a file with another hash."""


def report(
    event: SecurityEvent, request: HttpRequest | None = None, *, user: object = None, memory_id: object = None
) -> None:
    """
    Log *event*, and send the signal: whose *request* it was, from which address, and about which conversation.

    *user* is the primary key of the one whom it is about, by default that of the request. Pass nothing that people or
    models wrote.
    """
    request = getattr(request, "_request", request)  # Django's own, behind DRF's
    address = None if request is None else address_of(request)
    if request is not None:
        user = _user_of(request) if user is None else user
        named = getattr(getattr(request, "resolver_match", None), "kwargs", None) or {}
        memory_id = named.get("memory_id", named.get("chat_id")) if memory_id is None else memory_id
    about = {
        "address": address,
        "user": None if user is None else str(user),
        "memory_id": None if memory_id is None else str(memory_id)[:SHOWN],
    }
    # What a client may have chosen is logged as a literal, so that it cannot begin another line, or look like the rest.
    values = (event.value, _shown(address), about["user"], about["memory_id"])
    logger.warning("%s from %s by user %r in conversation %r", *values, extra={"event": event, **about})
    security_event.send_robust(sender=SecurityEvent, event=event, **about)


def report_refusal(request: HttpRequest, status: int, text: str = "", event: SecurityEvent | None = None) -> None:
    """Report that *request* was refused with 403 or 429, and with another status only if it is an *event*."""
    if event is None and status == HTTPStatus.FORBIDDEN:
        event = SecurityEvent.CSRF if text.startswith(("CSRF", "The Origin")) else SecurityEvent.FORBIDDEN
    elif event is None and status == HTTPStatus.TOO_MANY_REQUESTS:
        event = SecurityEvent.RATE
    if event is not None:
        report(event, request)


def address_of(request: HttpRequest) -> str:
    """
    Return the address that *request* came from, of which ``NUM_PROXIES`` proxies append theirs to ``X-Forwarded-For``.

    A client can write anything in front of that.
    """
    proxies = conf.rest().NUM_PROXIES
    addresses = [each.strip() for each in request.META.get("HTTP_X_FORWARDED_FOR", "").split(",") if each.strip()]
    remote: str = request.META.get("REMOTE_ADDR", "")
    return addresses[-min(proxies, len(addresses))] if proxies and addresses else remote


def _shown(address: str | None) -> str:
    if not address:
        return "-"
    try:
        found = ip_address(address)
    except ValueError:
        return repr(address)
    return str(type(found)(int(found)))  # without the zone of an IPv6 address, which may be any text


def _user_of(request: HttpRequest) -> Any:
    """Return the key of the user of *request*, if it is known already: this asks no database."""
    user = request.__dict__.get("user")
    if isinstance(user, LazyObject):
        user = getattr(request, "_cached_user", None)
    return getattr(user, "pk", None)
