"""
An answer as the response of a site's own view.

Like a ``TemplateResponse``, Django renders it once the view has returned: outside of the transaction that
``ATOMIC_REQUESTS`` has around the view, which ends before an answer does.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import aclosing, closing
from http import HTTPStatus
from typing import Any, Literal, TypeAlias, TypeVar

from django.core.exceptions import PermissionDenied
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse
from django.utils.cache import patch_vary_headers

from chatmemory_django.access import NotAllowedError
from chatmemory_django.chat.answers.exchange import AssistantEvent
from chatmemory_django.chat.answers.explained import explained, log_failure, refused
from chatmemory_django.chat.answers.rejections import reason_of
from chatmemory_django.chat.answers.too_long import AnswerTooLongError, QuestionTooLongError
from chatmemory_django.chat.answers.ui_stream import DONE, HEADERS, UiStream, encode
from chatmemory_django.chat.answers.ways import in_this_thread
from chatmemory_django.chat.approvals import ApprovalRequested
from chatmemory_django.chat.model import InvalidRequestError, UnsupportedFileError
from chatmemory_django.chat.threads import all_afterwards, close_with, made_in
from chatmemory_django.core.limits import is_storable, memory_key
from chatmemory_django.db.contexts import ThreadContext, continued, in_context
from chatmemory_django.db.threads import context_of, in_thread
from chatmemory_django.messages import TextContent, UserMessage
from chatmemory_django.private import private
from chatmemory_django.stores.base import BusyError

Protocol: TypeAlias = Literal["text", "sse", "ui"]
"""
How an answer is sent: as plain text; as server-sent events whose data are pieces of the text, and ``end`` or ``error``
at last; or in the AI SDK's UI message stream.
"""

ENDS: Mapping[Protocol, str] = {"text": "", "sse": "event: end\ndata:\n\n", "ui": DONE}

REFUSED = (QuestionTooLongError, AnswerTooLongError, UnsupportedFileError)
"""The errors by which this package refuses what a model's server would reject."""

_T = TypeVar("_T")
_R = TypeVar("_R")

PLAIN, EVENTS = "text/plain", "text/event-stream"


class AnswerResponse(StreamingHttpResponse):
    """
    The answer of an assistant to a request: its status is that of an error, if the answer fails before it begins.

    It is rendered after its view, and until then, the assistant is not asked. *asked* yields the events of the answer
    in this thread, *aasked* in an event loop.
    """

    template_name = context_data = None  # for middleware that changes the responses of templates

    def __init__(
        self,
        request: HttpRequest,
        asked: Callable[[], Generator[AssistantEvent, None, None]],
        aasked: Callable[[], AsyncGenerator[AssistantEvent, None]],
        *,
        memory_id: object,
        question: UserMessage,
        answer_id: str,
        protocol: Protocol | None,
        is_allowed: bool,
        is_others: Callable[[ApprovalRequested], bool],
    ) -> None:
        accepted = request.get_preferred_type([PLAIN, EVENTS])
        chosen: Protocol = protocol or ("sse" if accepted == EVENTS else "text")
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"} | (HEADERS if chosen == "ui" else {})
        kind = f"{PLAIN}; charset=utf-8" if chosen == "text" else EVENTS
        super().__init__(headers={**headers, "Content-Type": kind, "X-Content-Type-Options": "nosniff"})
        if protocol is None:
            patch_vary_headers(self, ["Accept"])
        self._asked, self._aasked = asked, aasked
        self._memory_id, self._question = memory_id, question
        self._written = _Written(chosen, memory_id, answer_id)
        self._is_allowed = is_allowed
        self._is_others = is_others
        self._is_rendered = False
        self._callbacks: list[Callable[[Any], Any]] = []
        self._request: HttpRequest = getattr(request, "_request", request)  # DRF wraps it
        self._is_asgi = isinstance(self._request, ASGIRequest)

    def add_post_render_callback(self, callback: Callable[[Any], Any]) -> None:
        """See ``SimpleTemplateResponse``: decorators made of middleware call this."""
        if self._is_rendered:
            callback(self)
        else:
            self._callbacks.append(callback)

    @property
    def render(self) -> Callable[[], Any]:
        """Begin the answer, and return the response, which Django awaits under ASGI; again, this only returns it."""
        return self.arender if self._is_asgi else self._render

    def _render(self) -> Any:
        if self._is_rendered:
            return self
        pieces = in_this_thread(self._written.pieces(_awaited(self._asked), _at_once(self._is_others)))
        pieces = continued(pieces, ThreadContext.of(self._request))
        try:
            self._check()
            next(pieces)
        except Exception as exc:  # noqa: BLE001  # what has no status of its own is raised
            self._refuse(exc)
        else:
            self.streaming_content = pieces
        return self._rendered()

    async def arender(self) -> Any:
        """See ``render``. Under WSGI, the answer is complete then, as its event loop ends with the view."""
        if self._is_rendered:
            return self
        pieces = self._written.pieces(self._aasked, _in_thread(self._is_others))
        if (context := await context_of(self._request)) is not None:
            pieces = made_in(context, pieces)
        try:
            self._check()
            await anext(pieces)
            if not self._is_asgi:
                whole = [piece async for piece in pieces]
                await all_afterwards()
        except Exception as exc:  # noqa: BLE001  # as above
            self._refuse(exc)
        else:
            self.streaming_content = pieces if self._is_asgi else whole
            if self._is_asgi:
                close_with(self, pieces)
        return self._rendered()

    def _rendered(self) -> Any:
        self._is_rendered = True
        response: Any = self
        for callback in self._callbacks:
            response = callback(response) or response
        return response

    def _refuse(self, error: Exception) -> None:
        """Make this the response to a question that was refused, or whose answer failed before it began."""
        refusal = self._refusal(error)
        self.status_code = refusal.status
        for name in HEADERS.keys() - {"Cache-Control"}:
            del self.headers[name]
        for name, value in {**refusal.headers, "Content-Type": f"{PLAIN}; charset=utf-8"}.items():
            self.headers[name] = value
        self.streaming_content = [str(refusal)]

    def _refusal(self, error: Exception) -> NotAllowedError:
        match error:
            case NotAllowedError():
                return error
            case PermissionDenied():  # that it exists is not for others to know
                return NotAllowedError(404, "There is no such chat.")
            case BusyError():
                return NotAllowedError(409, str(error), **{"Retry-After": "1"})
        rejected = None
        if isinstance(error, InvalidRequestError) and not isinstance(error, REFUSED):
            rejected = reason_of(error, self._question)
        refusal = refused(error, rejected)
        if refusal.status == HTTPStatus.INTERNAL_SERVER_ERROR:
            raise error  # Django reports it
        return refusal

    def _check(self) -> None:
        """Raise ``NotAllowedError`` if the request is refused, whatever is stored."""
        if not self._is_allowed:
            raise NotAllowedError(401, "Sign in to chat.")
        texts = (each.text for each in self._question.contents if isinstance(each, TextContent))
        if not all(map(is_storable, texts)):  # what databases cannot store comes from attacks
            raise NotAllowedError(400, "The question has a NUL character or a lone surrogate.")
        try:
            memory_key(self._memory_id)
        except ValueError:
            raise NotAllowedError(404, "There is no such chat.") from None


class _Written:
    """What is written of an answer. It does not know the response: with that, an answer that was dropped would stay."""

    def __init__(self, protocol: Protocol, memory_id: object, answer_id: str) -> None:
        self._protocol = protocol
        self._memory_id = memory_id
        self._ui = UiStream(answer_id)
        self._has_text = False

    @private
    async def pieces(
        self,
        asked: Callable[[], AsyncGenerator[AssistantEvent, None]],
        is_others: Callable[[ApprovalRequested], Awaitable[bool]],
    ) -> AsyncGenerator[str, None]:
        """Yield an empty piece when the answer has begun, then its pieces."""
        async with aclosing(asked()) as events:
            event = await anext(events, None)
            yield ""
            try:
                while event is not None:
                    others = isinstance(event, ApprovalRequested) and await is_others(event)
                    if piece := self._encoded(self._ui.feed(event, is_others=others)):
                        yield piece  # not an empty one, at which a response in chunks ends
                    event = await anext(events, None)
            except Exception as exc:
                if self._protocol == "text":
                    raise  # so that the connection breaks: a text has no other sign that it is not complete
                log_failure(exc, self._memory_id)
                yield self._failed(explained(exc)[1])
            else:
                if end := self._encoded(self._ui.finish()) + ENDS[self._protocol]:
                    yield end

    def _failed(self, text: str) -> str:
        if self._protocol == "ui":
            return self._encoded(self._ui.error(text)) + DONE
        return f"event: error\n{_data(text)}"

    def _encoded(self, chunks: Iterable[dict[str, Any]]) -> str:
        if self._protocol == "ui":
            return "".join(map(encode, chunks))
        pieces = []
        for chunk in chunks:
            if chunk["type"] == "text-start" and self._has_text:
                pieces.append("\n\n")  # what the model wrote before it called tools is a paragraph of its own
            elif chunk["type"] == "text-delta":
                self._has_text = True
                pieces.append(chunk["delta"])
        return "".join(pieces if self._protocol == "text" else map(_data, pieces))


def _data(text: str) -> str:
    """Return *text* as the data of a server-sent event."""
    return "".join(f"data: {line}\n" for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n")) + "\n"


def _awaited(
    asked: Callable[[], Generator[AssistantEvent, None, None]],
) -> Callable[[], AsyncGenerator[AssistantEvent, None]]:
    """Return a function whose generator yields what that of *asked* does, and never waits."""

    async def aasked() -> AsyncGenerator[AssistantEvent, None]:
        with closing(asked()) as events:
            for event in events:
                yield event

    return aasked


def _at_once(function: Callable[[_T], _R]) -> Callable[[_T], Awaitable[_R]]:
    """Return *function* as one that is awaited, and never waits."""

    async def awaited(value: _T) -> _R:
        return in_context(function)(value)

    return awaited


def _in_thread(function: Callable[[_T], _R]) -> Callable[[_T], Awaitable[_R]]:
    """Return *function* as one for an event loop."""

    async def awaited(value: _T) -> _R:
        return await in_thread(function, value)

    return awaited
