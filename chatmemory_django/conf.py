"""
The settings: one dict named ``CHATMEMORY``, read on every access, so that ``override_settings`` simply works.

The functions here trust what they read; ``checks`` tells what is wrong with it.
"""

from collections.abc import Callable, Mapping
from typing import Any

from django.conf import settings

DEFAULT_MEMORY: Mapping[str, Any] = {
    "CLASS": "chatmemory_django.memory.MessageWindowChatMemory",
    "OPTIONS": {"max_messages": 20},
}

DEFAULT_MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""Written twice, as text and as JSON, and escaped on the way, it fits MariaDB's packet of 16 MiB."""

DEFAULT_REST: Mapping[str, Any] = {
    "ACCESS_POLICY": "chatmemory_django.rest.access.AccessPolicy",
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
    "THROTTLE_RATES": {"read": "600/min", "write": "120/min", "export": "20/min", "sign_in": "20/min"},
}

DEFAULT_CHAT: Mapping[str, Any] = {
    "ASSISTANT": None,
    "ACCESS_POLICY": "chatmemory_django.chat.access.ChatAccessPolicy",
    "STREAMS": "chatmemory_django.chat.streams.DatabaseStreams",
    "REDIS_URL": "redis://127.0.0.1:6379/0",
    "WAIT_SECONDS": 0,
    "MAX_BODY_BYTES": 16 * 1024 * 1024,
    "MAX_TEXT_LENGTH": 100_000,
    "MAX_PARTS": 20,
    "IMAGE_DETAIL": "AUTO",
    "MAX_MESSAGES": 500,
    "THROTTLE_RATE": "60/min",
}

NAMES = frozenset({"MEMORY", "KEEP_HISTORY", "MAX_MESSAGE_BYTES", "ALLOW_NETWORK", "REMOTE_MEDIA", "REST", "CHAT"})


def memory() -> Mapping[str, Any] | Callable[[object], Mapping[str, Any]] | str:
    """``MEMORY``: ``{"CLASS": path, "OPTIONS": {...}}``, or a function from a memory id to that, or its path."""
    return _get("MEMORY", DEFAULT_MEMORY)  # type: ignore[no-any-return]


def keep_history() -> bool:
    """``KEEP_HISTORY``: whether messages stay in the database once they have left the memory; default True."""
    return _get("KEEP_HISTORY", default=True)  # type: ignore[no-any-return]


def max_message_bytes() -> int:
    """``MAX_MESSAGE_BYTES``: the largest message that is stored, in bytes of UTF-8; default 4 MiB."""
    return _get("MAX_MESSAGE_BYTES", DEFAULT_MAX_MESSAGE_BYTES)  # type: ignore[no-any-return]


def allow_network() -> bool:
    """``ALLOW_NETWORK``: whether tiktoken's encodings may be fetched from the network; default True."""
    return _get("ALLOW_NETWORK", default=True)  # type: ignore[no-any-return]


def remote_media() -> bool:
    """``REMOTE_MEDIA``: whether the admin shows images that are elsewhere, or only links to them; default False."""
    return _get("REMOTE_MEDIA", default=False)  # type: ignore[no-any-return]


def rest() -> Mapping[str, Any]:
    """``REST``: what the REST API can be told, with ``DEFAULT_REST`` for what is left out."""
    return {**DEFAULT_REST, **_get("REST", {})}


def chat() -> Mapping[str, Any]:
    """``CHAT``: what the chat over HTTP can be told, with ``DEFAULT_CHAT`` for what is left out."""
    return {**DEFAULT_CHAT, **_get("CHAT", {})}


def _get(name: str, default: object) -> Any:
    return getattr(settings, "CHATMEMORY", {}).get(name, default)
