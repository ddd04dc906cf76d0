"""
The settings: one dict named ``CHATMEMORY``, read on every access, so that ``override_settings`` simply works.

What reads a setting does not validate it; system checks do, with the functions at the end, which they share.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import timedelta
from difflib import get_close_matches
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004  # Django's name for it
from django.utils.module_loading import import_string

DEFAULT_MEMORY: Mapping[str, Any] = {
    "CLASS": "chatmemory_django.memory.MessageWindowChatMemory",
    "OPTIONS": {"max_messages": 20},
}

DEFAULT_MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""
Stored twice, as text and as JSON, and escaped in the statement, a message of this size fits MariaDB's packet of 16 MiB.
"""

DEFAULT_MEDIA: Mapping[str, Any] = {
    "MEDIA_MIN_BYTES": 16 * 1024,
    "MEDIA_MAX_BYTES": 64 * 1024 * 1024,
    "MEDIA_QUOTA": None,
    "MEDIA_TIMEOUT": 30,
    "MEDIA_MISSING": "error",
    "MEDIA_URLS": None,
}

DEFAULT_ACCESS_POLICY = "chatmemory_django.access.AccessPolicy"

REST_FORMATS = ("langchain4j", "openai")

DEFAULT_REST: Mapping[str, Any] = {
    "FORMAT": "langchain4j",
    "MAX_BODY_BYTES": 5 * 1024 * 1024,
    "MAX_IMPORT_BYTES": 32 * 1024 * 1024,
    "MAX_IMPORT_MESSAGES": 100_000,
    "MAX_MESSAGES": 100,
    "MAX_METADATA_BYTES": 16 * 1024,
    "MAX_TEXT_LENGTH": 1_000_000,
    "MAX_JSON_DEPTH": 32,
    "PAGE_SIZE": 50,
    "MAX_PAGE_SIZE": 200,
    "MAX_PAGE_CHARACTERS": 4 * 1024 * 1024,
    "NUM_PROXIES": 0,
    "THROTTLE_RATES": {
        "read": "600/min",
        "write": "120/min",
        "fork": "20/min",
        "export": "20/min",
        "import": "20/min",
        "usage": "60/min",
        "sign_in": "20/min",
    },
}

DEFAULT_CHAT: Mapping[str, Any] = {
    "ASSISTANT": None,
    "STREAMS": "chatmemory_django.chat.runs.streams.DatabaseStreams",
    "REDIS_URL": "redis://127.0.0.1:6379/0",
    "WAIT_SECONDS": 0,
    "MAX_BODY_BYTES": 16 * 1024 * 1024,
    "MAX_TEXT_LENGTH": 100_000,
    "MAX_PARTS": 20,
    "IMAGE_DETAIL": "AUTO",
    "MAX_MESSAGES": 500,
    "MAX_STREAMS": 20,
    "MAX_ANSWERS": 5,
    "END_SECONDS": 30,
    "RUN_SECONDS": 7 * 24 * 60 * 60,
    "APPROVAL_SECONDS": 24 * 60 * 60,
    "THROTTLE_RATE": "60/min",
    "READ_THROTTLE_RATE": "600/min",
}

DEFAULT_ENCRYPTION: dict[str, Any] = {
    "KEYS": [],
    "OWNER_KEYS": False,
    "CLASS": "chatmemory_django.encryption.keys.Keys",
}

DEFAULT_MCP_THROTTLE_RATE = "120/min"

DEFAULT_RETENTION: Mapping[str, timedelta | None] = {
    "HISTORY_OLDER_THAN": None,
    "IDLE": None,
    "TEMPORARY": timedelta(days=1),
}

MAX_DAYS = 100_000
"""The largest number of days of a period: no database supports dates that long ago."""

NAMES = frozenset(
    {
        "MEMORY",
        "KEEP_HISTORY",
        "MAX_MESSAGE_BYTES",
        "ALLOW_NETWORK",
        "REMOTE_MEDIA",
        "REMOTE_FILES",
        "MEDIA_STORAGE",
        "MEDIA_MIN_BYTES",
        "MEDIA_MAX_BYTES",
        "MEDIA_QUOTA",
        "MEDIA_TIMEOUT",
        "MEDIA_MISSING",
        "MEDIA_URLS",
        "ACCESS_POLICY",
        "REST",
        "CHAT",
        "MCP_THROTTLE_RATE",
        "ENCRYPTION",
        "COST",
        "BUDGET",
        "RETENTION",
    }
)


def memory() -> Mapping[str, Any] | Callable[[object], Mapping[str, Any]] | str:
    """Return ``MEMORY``: ``{"CLASS": path, "OPTIONS": {...}}``, a function from a memory id to that, or its path."""
    return _get("MEMORY", DEFAULT_MEMORY)  # type: ignore[no-any-return]


def keep_history() -> bool:
    """Return ``KEEP_HISTORY``: whether messages stay in the database after they have left the memory; default True."""
    return _get("KEEP_HISTORY", default=True)  # type: ignore[no-any-return]


def max_message_bytes() -> int:
    """Return ``MAX_MESSAGE_BYTES``: the largest message that can be stored, in bytes of UTF-8; default 4 MiB."""
    return _get("MAX_MESSAGE_BYTES", DEFAULT_MAX_MESSAGE_BYTES)  # type: ignore[no-any-return]


def allow_network() -> bool:
    """Return ``ALLOW_NETWORK``: whether tiktoken's encodings may be downloaded; default True."""
    return _get("ALLOW_NETWORK", default=True)  # type: ignore[no-any-return]


def remote_media() -> bool:
    """
    Return ``REMOTE_MEDIA``: whether the admin displays images from other servers instead of linking to them; default
    False.
    """
    return _get("REMOTE_MEDIA", default=False)  # type: ignore[no-any-return]


def remote_files() -> bool:
    """
    Return ``REMOTE_FILES``: whether users may send the addresses of files on other servers, which models then load;
    default True.
    """
    return _get("REMOTE_FILES", default=True)  # type: ignore[no-any-return]


def media_storage() -> str | None:
    """Return ``MEDIA_STORAGE``: the alias in ``STORAGES`` for the files in messages; None, the default: in the rows."""
    return _get("MEDIA_STORAGE", None)  # type: ignore[no-any-return]


def media(name: str) -> Any:
    """Return *name*, one of the settings for files in a storage, see ``DEFAULT_MEDIA``."""
    return _get(name, DEFAULT_MEDIA[name])


def access_policy_class() -> str:
    """Return ``ACCESS_POLICY``: the path of the ``access.AccessPolicy`` that decides who may do what."""
    return _get("ACCESS_POLICY", DEFAULT_ACCESS_POLICY)  # type: ignore[no-any-return]


def rest() -> Mapping[str, Any]:
    """Return ``REST``: the settings of the REST API, completed from ``DEFAULT_REST``."""
    return {**DEFAULT_REST, **_get("REST", {})}


def chat() -> Mapping[str, Any]:
    """Return ``CHAT``: the settings of the chat over HTTP, completed from ``DEFAULT_CHAT``."""
    return {**DEFAULT_CHAT, **_get("CHAT", {})}


def encryption() -> Mapping[str, Any]:
    """Return ``ENCRYPTION``: the settings of the app ``encryption``, completed from ``DEFAULT_ENCRYPTION``."""
    return {**DEFAULT_ENCRYPTION, **_get("ENCRYPTION", {})}


def mcp_throttle_rate() -> str | None:
    """Return ``MCP_THROTTLE_RATE``: how many requests each user may send to MCP; None for no limit."""
    return _get("MCP_THROTTLE_RATE", DEFAULT_MCP_THROTTLE_RATE)  # type: ignore[no-any-return]


def cost() -> object:
    """Return ``COST``: the path of a function of a model's name and a ``TokenUsage``, or None, the default."""
    return _get("COST", None)


def budget() -> object:
    """Return ``BUDGET``: a dict, a function of a user that returns one or None, its path, or None, the default."""
    return _get("BUDGET", None)


def retention() -> Mapping[str, timedelta | None] | None:
    """
    Return ``RETENTION``: after which periods old messages, idle and temporary conversations are deleted, completed from
    ``DEFAULT_RETENTION``, where None is never. None, the default, if it is not set.
    """
    given = _get("RETENTION", None)
    if given is None:
        return None
    periods = {**DEFAULT_RETENTION, **given}
    return {name: timedelta(days=each) if isinstance(each, int) else each for name, each in periods.items()}


def _get(name: str, default: object) -> Any:
    return getattr(settings, "CHATMEMORY", {}).get(name, default)


def check_dict(
    name: str,
    defaults: Mapping[str, Any],
    check_values: Callable[[Mapping[str, Any]], Iterable[CheckMessage]],
    *,
    hint: str,
    ids: tuple[str, str, str],
) -> list[CheckMessage]:
    """
    Check the dict *name* in ``CHATMEMORY``: its type, its names and its whole numbers, then what *check_values* checks.

    *ids* are those of the first three; *hint* is for a value that is not a dict.
    """
    no_dict, unknown, no_number = ids
    chatmemory: object = getattr(settings, "CHATMEMORY", {})
    if not isinstance(chatmemory, Mapping):
        return []  # another check reports this
    given: object = chatmemory.get(name, {})
    where = f"CHATMEMORY[{name!r}]"
    if not isinstance(given, Mapping):
        return [Error(f"{where} must be a dict, not {type(given).__name__}.", hint=hint, id=no_dict)]
    values = {**defaults, **given}
    numbers = {name: default for name, default in defaults.items() if type(default) is int}
    return [
        *check_names(where, given, defaults, unknown),
        *(
            Error(
                f"{where}[{name!r}] must be a whole number of at least {min(1, default)}, not {values[name]!r}.",
                hint=f"Remove it to use the default of {default}.",
                id=no_number,
            )
            for name, default in numbers.items()
            if type(values[name]) is not int or values[name] < min(1, default)
        ),
        *check_values(values),
    ]


def check_names(where: str, given: Mapping[Any, Any], names: Collection[str], check_id: str) -> Iterator[CheckMessage]:
    """Check that *names* has all keys of the dict *given*, which is the setting *where*."""
    for name in sorted(set(given) - set(names), key=str):
        close = get_close_matches(str(name), names, n=1)
        yield Warning(
            f"{where} has no setting {name!r}, so it has no effect.",
            hint=f"Did you mean {close[0]!r}?" if close else f"The settings are {', '.join(sorted(names))}.",
            id=check_id,
        )


def check_class(where: str, path: object, base: type, default: str, check_id: str) -> Iterator[CheckMessage]:
    """Check that *path*, the value of the setting *where*, is that of *base* or of a subclass."""
    found = imported(path)
    if not (isinstance(path, str) and isinstance(found, type) and issubclass(found, base)):
        yield Error(
            f"{where} must be the path of a subclass of {base.__name__}, not {path!r}.",
            hint=f"For example {default!r}, the default.",
            id=check_id,
        )


def imported(value: object) -> object:
    """Return what *value* names if it is a path, otherwise *value* itself."""
    try:
        return import_string(value) if isinstance(value, str) else value
    except ImportError:
        return value
