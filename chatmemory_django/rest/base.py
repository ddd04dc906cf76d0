"""What all views have in common. Everything that DRF would take from the site's settings is said here instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from http import HTTPStatus
from typing import Any, Literal

from django.db import connections, router, transaction
from django.db.models import QuerySet
from django.http import Http404
from rest_framework import exceptions
from rest_framework.authentication import BaseAuthentication
from rest_framework.parsers import BaseParser
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from chatmemory_django import conf
from chatmemory_django.ids import memory_key
from chatmemory_django.models import Conversation
from chatmemory_django.rest.access import AccessPolicy, Verb, access_policy
from chatmemory_django.rest.problems import Refusal, bad_request, handle_exception
from chatmemory_django.rest.schema import Schema
from chatmemory_django.rest.throttles import ScopeThrottle
from chatmemory_django.rest.wire import JSONParser, JSONRenderer, OneKind


class IsAllowed(BasePermission):
    """As the access policy says."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        """See ``BasePermission.has_permission``."""
        return access_policy().is_allowed(request)


class ChatMemoryView(APIView):
    """A view of the API: JSON in, JSON out, for those whom the access policy lets in."""

    parser_classes: Sequence[type[BaseParser]] = (JSONParser,)
    renderer_classes = (JSONRenderer,)
    permission_classes = (IsAllowed,)
    throttle_classes = (ScopeThrottle,)
    content_negotiation_class = OneKind
    metadata_class = None
    versioning_class = None
    schema = Schema()

    scope: Literal["export"] | None = None
    """What requests count as to the throttle; None for what their method says."""

    @cached_property
    def policy(self) -> AccessPolicy:
        """Who may do what."""
        return access_policy()

    def get_authenticators(self) -> list[BaseAuthentication]:
        """See ``APIView.get_authenticators``."""
        own = access_policy().authentication_classes
        return super().get_authenticators() if own is None else [authentication() for authentication in own]

    def get_exception_handler(self) -> Callable[[Exception, dict[str, Any]], Response | None]:
        """See ``APIView.get_exception_handler``."""
        return handle_exception

    def scope_of(self, request: Request) -> str:
        """What *request* counts as to the throttle."""
        return self.scope or ("read" if request.method in {"GET", "HEAD"} else "write")

    def finalize_response(self, request: Request, response: Response, *args: Any, **kwargs: Any) -> Response:
        """See ``APIView.finalize_response``."""
        response = super().finalize_response(request, response, *args, **kwargs)
        response["Cache-Control"] = "no-store"  # chats are personal
        return response

    def conversation(self, memory_id: str, verb: Verb = "view") -> Conversation:
        """The conversation *memory_id*, if *verb* may be done to it: else 404, or 403 if it may at least be viewed."""
        return self._find(memory_id, verb, lambda rows: rows)

    @contextmanager
    def changing(self, memory_id: str, verb: Verb = "change") -> Iterator[Conversation]:
        """The same in a transaction in which nobody else writes to it; 412 if ``If-Match`` names another state."""
        using = router.db_for_write(Conversation)
        # Of a tenant that the policy joins nothing need be locked; where that cannot be said, all is.
        of = ("self",) if connections[using].features.has_select_for_update_of else ()
        with transaction.atomic(using=using):
            conversation = self._find(memory_id, verb, lambda rows: rows.using(using).select_for_update(of=of))
            self._check_match(conversation)
            yield conversation

    def _find(
        self,
        memory_id: str,
        verb: Verb,
        finding: Callable[[QuerySet[Conversation]], QuerySet[Conversation]],
    ) -> Conversation:
        try:
            key = memory_key(memory_id)
        except ValueError:
            raise Http404 from None
        found = finding(self.policy.conversations(self.request, verb)).filter(memory_id=key).first()
        if found is not None:
            return found
        if verb != "view" and self.policy.conversations(self.request, "view").filter(memory_id=key).exists():
            raise exceptions.PermissionDenied
        raise Http404

    def _check_match(self, conversation: Conversation) -> None:
        wanted = self.request.headers.get("If-Match")
        if wanted is None or wanted.strip() == "*":
            return
        if etag(conversation) not in (part.strip() for part in wanted.split(",")):
            raise Refusal(
                HTTPStatus.PRECONDITION_FAILED, "The conversation has changed since: read it again.", "If-Match"
            )


def etag(conversation: Conversation) -> str:
    """A name for the state that *conversation* and its messages are in: every write gives it another version."""
    return f'"{conversation.pk}-{conversation.version}"'


def page_size(asked: int | None) -> int:
    """How many to a page; 400 if *asked* is more than the settings allow."""
    limits = conf.rest()
    most: int = limits["MAX_PAGE_SIZE"]
    usual: int = limits["PAGE_SIZE"]
    if asked is None:
        return min(usual, most)
    if asked > most:
        raise bad_request("?limit", f"It is {asked}, but may be {most} at most.")
    return asked


def with_parameters(request: Request, **changes: object) -> str:
    """The address of *request* with other query parameters, without those that are None."""
    parameters = request.query_params.copy()
    for name, value in changes.items():
        if value is None:
            parameters.pop(name, None)
        else:
            parameters[name] = str(value)
    return request.build_absolute_uri(f"{request.path}?{parameters.urlencode()}")
