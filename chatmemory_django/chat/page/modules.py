"""
The scripts: modules of the browser, at addresses that change with what is in them.

A manifest storage of static files puts a hash into the names of files, and not into the imports in a module unless the
site asks for that. A module would be new, and what it imports an older one from the browser's cache. So a view serves
them, below one hash of all of them, by which their relative imports find what belongs to them.
"""

from functools import cache
from hashlib import sha256
from pathlib import Path

from django.conf import settings
from django.urls import reverse

FOLDER = Path(__file__).parent / "static" / "chatmemory_page"


def read() -> dict[str, bytes]:
    """Return the modules by name."""
    return {path.stem: path.read_bytes() for path in sorted(FOLDER.glob("*.js"))}


_kept = cache(read)


def contents() -> dict[str, bytes]:
    """Return the modules by name; with ``DEBUG``, as they are now."""
    return read() if settings.DEBUG else _kept()


def version() -> str:
    """Return the hash of all modules."""
    return sha256(b"\0".join(contents().values())).hexdigest()[:16]


def address(name: str) -> str:
    """Return the address of the module *name*."""
    return reverse("chatmemory_page:module", args=[version(), name])
