"""Pictures in messages, a storage for them, and whether each file there has a message and each message its files."""

import base64
import json
import random
import re
from typing import Any

from django.core.files.storage import Storage

from chatmemory_django.codec import message_to_json
from chatmemory_django.contrib.files.models import MediaFile, MediaReference
from chatmemory_django.formats.verbatim import to_group
from chatmemory_django.messages import CustomMessage, Image, ImageContent, NewMessage, TextContent, UserMessage
from chatmemory_django.models import Message

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x02\0\0\0\x01\0\x08\x02\0\0\0"
"""The beginning of an image of 512 x 256 pixels."""

IN_MEMORY = {"BACKEND": "django.core.files.storage.InMemoryStorage"}


def use_storage(settings: Any, backend: dict[str, Any] | None = None, **options: Any) -> None:
    """Let the settings ``STORAGES`` and ``MEDIA_STORAGE`` name a storage "chats"; *options* are others of the app."""
    settings.STORAGES = {**settings.STORAGES, "chats": backend or IN_MEMORY}
    settings.CHATMEMORY = {**settings.CHATMEMORY, "MEDIA_STORAGE": "chats", "MEDIA_MIN_BYTES": 1000, **options}


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def a_file(seed: int = 0, size: int = 2000) -> bytes:
    return PNG + random.Random(seed).randbytes(size - len(PNG))


def picture(seed: int = 0, text: str = "What is this?") -> UserMessage:
    image = Image(base64_data=encoded(a_file(seed)), mime_type="image/png")
    return UserMessage([TextContent(text), ImageContent(image)])


def custom(seed: int = 0) -> CustomMessage:
    """Another framework's message, with the same file as ``picture`` in its own JSON."""
    return CustomMessage(
        {"type": "image_generation_call", "result": encoded(a_file(seed)), "status": ["completed", 1, None]}
    )


def entry(seed: int = 0) -> list[NewMessage]:
    """An entry of two messages, whose last one has the original of both."""
    given = {"parts": [json.loads(message_to_json(picture(seed))), "And this?"]}
    return to_group(given, "entries", lambda _: [picture(seed), UserMessage("And this?")], "$")


def stored_in(storage: Storage) -> list[tuple[str, bytes]]:
    """Return name and content of each file in *storage*."""
    found = []
    for folder in storage.listdir("chatmemory")[0] if storage.exists("chatmemory") else []:
        for name in storage.listdir(f"chatmemory/{folder}")[1]:
            path = f"chatmemory/{folder}/{name}"
            with storage.open(path) as file:
                found.append((path, file.read()))
    return found


def assert_consistent(storage: Storage) -> None:
    """Check by the tables and *storage* alone that each file has a message, and each message its files."""
    named = dict(MediaFile.objects.values_list("name", "pk"))
    assert {name for name, _ in stored_in(storage)} == set(named)
    rows = Message.objects.values_list("conversation_id", "sequence", "payload", "verbatim")
    needed = {
        (conversation, sequence, sha256)
        for conversation, sequence, *columns in rows
        for found in re.findall(r'"sha256":"(\w{64})"|(?:\\u0002|\x02)-?(\w{64}):', "".join(filter(None, columns)))
        for sha256 in filter(None, found)
    }
    assert needed == set(MediaReference.objects.values_list("conversation_id", "sequence", "file__sha256"))
    assert set(named.values()) == set(MediaReference.objects.values_list("file_id", flat=True))
