"""What a request for an answer is, in either API: of a user who may ask, and read as far as they are alike."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar
from uuid import UUID, uuid4

from django.http import HttpRequest
from msgspec.structs import replace

from chatmemory_django.access import AccessPolicy, NotAllowedError
from chatmemory_django.chat import named
from chatmemory_django.chat.guards import GuardRefusedError
from chatmemory_django.chat.http.asking import Admission, admission_of, admitted, body_of
from chatmemory_django.chat.http.posted import MAX_REST_BYTES
from chatmemory_django.chat.wishes import Wishes
from chatmemory_django.contrib.openai_api.assistants import name_of
from chatmemory_django.contrib.openai_api.retries import is_retry, key_of
from chatmemory_django.contrib.openai_api.wishes import AnswerRequest
from chatmemory_django.core.media import AddressError, check_files
from chatmemory_django.messages import UserMessage

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

INSTRUCTIONS = "X-Instructions"
"""The header of a response to a client that has sent instructions: "context", or "left-out"."""

_Request = TypeVar("_Request", bound=AnswerRequest)


class ReadRequest(NamedTuple, Generic[_Request]):
    """A request of a user who may ask, and what is common to the APIs."""

    policy: AccessPolicy
    user: AbstractBaseUser
    request: _Request
    name: str
    """That of the assistant in the settings."""
    given: Any
    """What its ``read`` returns."""
    pairs: dict[str, Any]
    is_context: bool
    """Whether the client's instructions are sent, as context."""
    wishes: Wishes
    is_retry: bool
    """Whether the client has sent it before."""
    key: UUID | None
    """What stands for the key that the caller has given it."""

    @classmethod
    def of(cls, request: HttpRequest, kind: type[_Request], where: str) -> ReadRequest[_Request]:
        """Return *request*, of this *kind*, whose messages are at *where*; ``NotAllowedError`` if it is refused."""
        policy, user = admitted(request)
        check = partial(check_files, remote=policy.may_link_files(request))
        try:
            wanted: Any = kind.of(body_of(request))
            name, given = name_of(wanted.model, policy, request), wanted.read(check)
            is_context = bool(given.instructions) and policy.may_instruct(request)
            wishes = wanted.wishes(given.instructions if is_context else "")
            retry, key = is_retry(request), key_of(request, user)
            return ReadRequest(policy, user, wanted, name, given, wanted.pairs(), is_context, wishes, retry, key)
        except AddressError as exc:
            raise NotAllowedError(400, f"{where}: {exc}") from None
        except ValueError as exc:
            raise NotAllowedError(400, str(exc)) from None

    def admission(self, request: HttpRequest, body: dict[str, Any]) -> Admission:
        """Return the admission of what *body* asks, of which something is stored; see ``admission_of``."""
        content = json.dumps({**self.rest, **body, "assistant": self.name or None}).encode()
        asked = admission_of(request, self.policy, self.user, content, self.wishes)
        if asked.given is None or len(json.dumps(self.rest)) > MAX_REST_BYTES:
            return asked
        return asked._replace(given=replace(asked.given, body=self.rest))  # which a response in progress has, too

    def guarded(self, request: HttpRequest, memory_id: str, question: UserMessage) -> UserMessage | None:
        """Return what the guards of the assistant leave of *question*, asked before; None if they refuse it."""

        def asked() -> named.Asked:
            ids = {"id": memory_id, "memory_id": memory_id}
            return named.Asked(**ids, message=question, user=self.user, assistant=self.name, body=self.rest)

        assistant = named.assistant(self.name, request, asked)
        with suppress(GuardRefusedError):
            left: UserMessage = assistant.guarded(memory_id, question, {"owner": self.user, "request": request})
            return left
        return None

    @property
    def question_id(self) -> str:
        """The client's id of the question: that of its key, or empty."""
        return f"key_{self.key.hex}" if self.key else ""

    def new_id(self) -> str:
        """Return the id of a new conversation: for a key, the same one each time."""
        return str(self.key or uuid4())

    @property
    def rest(self) -> dict[str, Any]:
        """The fields of the body that the site's functions see."""
        return {**self.request.rest(), "metadata": self.pairs}

    @property
    def headers(self) -> dict[str, str]:
        """Those of the response: what has become of instructions."""
        return {INSTRUCTIONS: "context" if self.is_context else "left-out"} if self.given.instructions else {}
