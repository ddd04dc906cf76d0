"""System checks of the setting ``CHAT``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from inspect import Parameter, iscoroutinefunction, signature
from typing import Any, NamedTuple, cast

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004  # Django's name for it
from django.db import connections, router
from django.urls import NoReverseMatch, reverse
from django.utils.functional import Promise

from chatmemory_django import conf
from chatmemory_django.chat.conf import Chat
from chatmemory_django.chat.costs.conf import check_costs
from chatmemory_django.chat.named import takes_asked
from chatmemory_django.chat.runs import leases
from chatmemory_django.core.limits import ASSISTANT_NAME, MAX_ASSISTANT_LENGTH
from chatmemory_django.db.engines import Dialect, dialect
from chatmemory_django.memory import TokenWindowChatMemory
from chatmemory_django.messages import DetailLevel, Image, ImageContent, UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.tokens import OpenAiTokenCountEstimator, ScaledTokenCountEstimator, TokenCountEstimator

SMALLEST_IMAGE = Image(base64_data="R0lGODlhAQABAAAAACw=")  # the header of a GIF file of one pixel

LIMITS = ("max_tokens", "evict_to", "summary_tokens", "after_tokens")
"""The options of memories that may be functions of the memory id."""


POOL_SIZE = 4
"""How many connections a pool of psycopg has, unless its options say otherwise."""

WAITING_SECONDS = 60.0
"""How long an answer may wait for a worker before a check warns."""

ENGINES_OF_TENANTS = frozenset({"django_pgschemas", "django_tenants", "tenant_schemas"})
"""The packages whose engines keep the tenant in the connection of each thread."""


def check_chat(**kwargs: Any) -> list[CheckMessage]:
    """Check ``CHATMEMORY["CHAT"]``, ``COST`` and ``BUDGET``."""
    return [*Chat.check(_values), *check_costs()]


def check_assistant(**kwargs: Any) -> list[CheckMessage]:
    """Warn if the chat has no assistant: then it refuses every question."""
    chat = Chat.readable()
    if chat is None or chat.ASSISTANT is not None or chat.ASSISTANTS or not _is_included():
        return []  # or other checks report it
    return [
        Warning(
            "CHATMEMORY['CHAT'] has neither 'ASSISTANT' nor 'ASSISTANTS', so the chat answers every question with 503.",
            hint="Name your assistant, for example 'mysite.assistants.assistant', or remove the chat's URLs.",
            id="chatmemory.W032",
        )
    ]


def check_waiting(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Warn if answers have waited for a worker for long; run with ``check --database default``."""
    chat = Chat.readable()
    if chat is None or chat.RUNS != "worker":
        return []  # or other checks report it
    waiting = ((using, leases.waiting(using, WAITING_SECONDS)) for using in databases or ())
    return [
        Warning(
            f"{count} answers in the database {using!r} have waited for a worker for more than "
            f"{WAITING_SECONDS:.0f} seconds.",
            hint=f"Run manage.py run_chatmemory --database {using}, and keep it running, or more of them.",
            id="chatmemory.W036",
        )
        for using, count in waiting
        if count
    ]


def _is_included() -> bool:
    """Return whether the site has URLs, and includes those of the chat."""
    if not hasattr(settings, "ROOT_URLCONF"):
        return False
    try:
        reverse("chatmemory_chat:chat")
    except NoReverseMatch:
        return False
    return True


def _values(chat: Chat) -> Iterator[CheckMessage]:
    if chat.ASSISTANT is not None:
        yield from _assistant("['ASSISTANT']", chat.ASSISTANT, chat.IMAGE_DETAIL)
    yield from _assistants(chat.ASSISTANTS, chat.IMAGE_DETAIL)
    yield from _thread_context(chat.THREAD_CONTEXT)
    missing = getattr(conf.imported(chat.STREAMS), "__abstractmethods__", None)
    if missing:
        yield Error(
            f"{chat.STREAMS!r}, CHATMEMORY['CHAT']['STREAMS'], does not implement {', '.join(sorted(missing))}.",
            hint="Implement all abstract methods of Streams, or extend DatabaseStreams or RedisStreams.",
            id="chatmemory.E037",
        )
    if chat.has_workers:
        yield from _of_workers(chat)
    yield from _greeting(chat.GREETING)


def _of_workers(chat: Chat) -> Iterator[CheckMessage]:
    context = conf.imported(chat.THREAD_CONTEXT)
    if callable(context) and not hasattr(context, "capture"):
        yield Error(
            "CHATMEMORY['CHAT']['THREAD_CONTEXT'] is a function of the request, which no worker has, and "
            "CHATMEMORY['CHAT']['RUNS'] is 'worker'.",
            hint="Name an object with the methods capture(request) and enter(text); the page Tenants has one.",
            id="chatmemory.E044",
        )
    paths: dict[str, object] = {"['ASSISTANT']": chat.ASSISTANT}
    if isinstance(chat.ASSISTANTS, Mapping):
        paths |= {f"['ASSISTANTS'][{name!r}]": path for name, path in chat.ASSISTANTS.items()}
    for where, path in paths.items():
        needing = _needing_request(conf.imported(path))
        if needing:
            yield Warning(
                f"CHATMEMORY['CHAT']['RUNS'] is 'worker', where there is no request, and these functions of "
                f"CHATMEMORY['CHAT']{where} have a parameter for it without a default: {', '.join(needing)}.",
                hint=(
                    "A worker passes None. Write request=None where the function can do without, and take what it "
                    "needs from owner, memory_id or asked."
                ),
                id="chatmemory.W035",
            )


def _needing_request(found: object) -> list[str]:
    """Return the names of the functions of the assistant *found*, or of that function, that need a request."""
    from chatmemory_django.chat.assistant import Assistant  # requires extras that some sites lack

    if isinstance(found, Assistant):
        functions: list[Any] = [each.function for each in found.functions]
        functions += [tool.function for tool in found.tools.values() if tool.runs_in == "server"]
        return [_name(each) for each in functions if _needs(each, "request")]
    return [_name(found)] if _is_function(found) and _needs(found, None) else []


def _needs(function: Any, named: str | None) -> bool:
    """Return whether *function* has no default for the parameter *named*, or for its first one."""
    parameters = signature(function).parameters
    parameter = parameters.get(named) if named else next(iter(parameters.values()), None)
    return parameter is not None and parameter.default is Parameter.empty


def _name(function: Any) -> str:
    function = function.func if isinstance(function, partial) else function
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _greeting(given: object) -> Iterator[CheckMessage]:
    found = conf.imported(given) if conf.is_path(given) else given
    is_misspelt = found is given and conf.is_path(given) and find_spec(str(given).partition(".")[0]) is not None
    if is_misspelt or not (found is None or isinstance(found, str | Promise) or callable(found)):
        yield Error(
            f"CHATMEMORY['CHAT']['GREETING'] must be a text, a function of a request that returns one, the path of "
            f"one, or None, not {given!r}.",
            hint="Write 'Hello! How can I help?', for example, or gettext_lazy() of it.",
            id="chatmemory.E045",
        )


def _thread_context(named: object) -> Iterator[CheckMessage]:
    found = conf.imported(named)
    is_object = callable(getattr(found, "capture", None)) and callable(getattr(found, "enter", None))
    is_half = not is_object and (hasattr(found, "capture") or hasattr(found, "enter"))
    if named is not None and (is_half or not (is_object or callable(found))):
        yield Error(
            f"CHATMEMORY['CHAT']['THREAD_CONTEXT'] must be the path of a function that takes a request and returns a "
            f"context manager, or of an object with the methods capture(request) and enter(text), not {named!r}.",
            hint="For example 'mysite.tenants.thread_context'; the page Tenants has one.",
            id="chatmemory.E039",
        )
    for engine in sorted({each["ENGINE"] for each in settings.DATABASES.values()}):
        if named is None and engine.partition(".")[0] in ENGINES_OF_TENANTS:
            yield Error(
                f"The database engine {engine!r} gives each tenant a schema, which the chat's threads do not know: "
                "they would read and write what belongs to other tenants.",
                hint=(
                    "Write \"THREAD_CONTEXT\": 'mysite.tenants.thread_context' in CHATMEMORY['CHAT'], which sets the "
                    "tenant's schema in each thread that works for a request. The page Tenants has it."
                ),
                id="chatmemory.E040",
            )


def _assistants(given: object, image_detail: object) -> Iterator[CheckMessage]:
    are_named = isinstance(given, Mapping) and all(
        isinstance(name, str) and re.fullmatch(ASSISTANT_NAME, name) for name in given
    )
    if not are_named:
        yield Error(
            "CHATMEMORY['CHAT']['ASSISTANTS'] must be a dict of assistants by name, each of 1 to "
            f"{MAX_ASSISTANT_LENGTH} letters, digits, hyphens and underscores, not {given!r}.",
            hint='For example {"support": "mysite.assistants.support", "sales": "mysite.assistants.sales"}.',
            id="chatmemory.E038",
        )
        return
    for name, assistant in cast("Mapping[str, object]", given).items():
        yield from _assistant(f"['ASSISTANTS'][{name!r}]", assistant, image_detail)


def _is_function(found: object) -> bool:
    """Return whether *found* is a function of a request, or of what it asks as well, and not asynchronous."""
    if isinstance(found, type) or not callable(found) or iscoroutinefunction(found):
        return False
    try:
        takes_asked(found)
    except (TypeError, ValueError):
        return False
    return True


def _assistant(where: str, named: object, image_detail: object) -> Iterator[CheckMessage]:
    from chatmemory_django.chat.assistant import Assistant  # requires extras that some sites lack

    found = conf.imported(named)
    if not isinstance(found, Assistant) and not _is_function(found):
        yield Error(
            f"CHATMEMORY['CHAT']{where} must be the path of an Assistant, or of a function that takes a request, or "
            f"(request, asked), and returns an Assistant, not {named!r}.",
            hint="For example 'mysite.assistants.assistant', where assistant = Assistant(OpenAiChatModel('gpt-5')).",
            id="chatmemory.E034",
        )
        return
    if not isinstance(found, Assistant):
        return  # it depends on the request
    if getattr(found.model, "lacks_key", False):
        yield Warning(
            f"The model of {named!r}, CHATMEMORY['CHAT']{where}, has no API key, so it answers no question.",
            hint=(
                "Set the environment variable of its vendor, such as OPENAI_API_KEY or ANTHROPIC_API_KEY; a server "
                "without keys takes any text."
            ),
            id="chatmemory.W033",
        )
    if (limit := _token_limit(found)) and image_detail in list(DetailLevel.__members__):
        image = ImageContent(SMALLEST_IMAGE, DetailLevel[str(image_detail)])
        needed = limit.estimator.estimate_token_count_in_messages([UserMessage([image])])
        if needed > limit.max_tokens:
            yield Warning(
                f"The memory of {named!r}, CHATMEMORY['CHAT']{where}, can hold no image: even the smallest takes "
                f"{needed:,} tokens, and max_tokens is {limit.max_tokens:,}.",
                hint=(
                    'Raise max_tokens, write "IMAGE_DETAIL": "LOW", or choose a model whose images take fewer tokens '
                    "and count with it. Silence this check if nobody sends images."
                ),
                id="chatmemory.W034",
            )


class _TokenLimit(NamedTuple):
    max_tokens: int
    estimator: TokenCountEstimator


def _token_limit(assistant: Any) -> _TokenLimit | None:
    """Return the limit of *assistant*'s memories, if it is the same for all and a vendor need not be asked to count."""
    given: Any = conf.imported(conf.general().MEMORY) if assistant.memory is None else assistant.memory
    if not isinstance(given, Mapping | type):
        return None  # a function
    try:
        options = {**(given.get("OPTIONS", {}) if isinstance(given, Mapping) else {}), **assistant.memory_options}
        if any(callable(options.get(each)) for each in LIMITS):
            return None
        memory = assistant.chat_memory("check")
    except (ImportError, KeyError, TypeError, ValueError):  # another check reports it
        return None
    if not isinstance(memory, TokenWindowChatMemory) or not isinstance(memory.max_tokens, int):
        return None
    counts_here = isinstance(memory.token_count_estimator, OpenAiTokenCountEstimator | ScaledTokenCountEstimator)
    return _TokenLimit(memory.max_tokens, memory.token_count_estimator) if counts_here else None


def check_chat_deployment(**kwargs: Any) -> list[CheckMessage]:
    """Check that the server, and the connections of the database, suit the chat; run with ``check --deploy``."""
    chat = Chat.readable()
    return [] if chat is None else [*_server(), *_threads(chat.THREADS)]  # or other checks report it


def _server() -> Iterator[CheckMessage]:
    wsgi, asgi = (getattr(settings, f"{name}_APPLICATION", None) for name in ("WSGI", "ASGI"))
    if wsgi and not asgi:
        yield Warning(
            "WSGI_APPLICATION is set, and ASGI_APPLICATION is not: under WSGI, an answer of the chat arrives in one "
            "piece when it is complete, and takes a worker until then.",
            hint="Serve the site with ASGI, and set ASGI_APPLICATION, or WSGI_APPLICATION to None.",
            id="chatmemory.W076",
        )


def _threads(threads: object) -> Iterator[CheckMessage]:
    alias = router.db_for_write(Conversation)
    if dialect(connections[alias]) is Dialect.SQLITE:
        return
    given = connections[alias].settings_dict
    pool = given["OPTIONS"].get("pool")
    if pool:
        sizes = pool if isinstance(pool, Mapping) else {}
        most = sizes.get("max_size") or sizes.get("min_size", POOL_SIZE)
        if isinstance(threads, int) and threads > most:
            yield Warning(
                f"CHATMEMORY['CHAT']['THREADS'] is {threads}, and the pool of DATABASES[{alias!r}] has {most} "
                "connections: threads wait for one of them, and so does every other request.",
                hint=f'Write "max_size": {threads} or more in OPTIONS["pool"], or lower THREADS.',
                id="chatmemory.W078",
            )
    elif given["CONN_MAX_AGE"] == 0:
        yield Warning(
            f"CONN_MAX_AGE of DATABASES[{alias!r}] is 0, and it has no pool: the chat's threads open a connection for "
            "each of the three or more times that an answer uses the database, which takes longer than its statements.",
            hint="Set CONN_MAX_AGE to 60, or OPTIONS['pool'] on PostgreSQL; silence this behind a pooler.",
            id="chatmemory.W079",
        )
