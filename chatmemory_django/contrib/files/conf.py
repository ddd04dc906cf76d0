"""What the app reads of ``CHATMEMORY``."""

from typing import Annotated

from chatmemory_django.conf import Count, CountOrNone, Section, one_of


class StorageOfFiles(Section):
    """The settings of the app, which stand in ``CHATMEMORY`` itself."""

    ids = ("chatmemory.E082",)

    MEDIA_STORAGE: str | None = None
    """The alias in ``STORAGES`` for the files in messages; None: they are in the rows."""
    MEDIA_MIN_BYTES: Count = 16 * 1024
    MEDIA_MAX_BYTES: Count = 64 * 1024 * 1024
    MEDIA_QUOTA: CountOrNone = None
    MEDIA_TIMEOUT: Count = 30
    MEDIA_MISSING: Annotated[str, one_of("error", "placeholder"), "chatmemory.E083"] = "error"
    MEDIA_URLS: CountOrNone = None


files = StorageOfFiles.current
