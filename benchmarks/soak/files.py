"""What is too many or too few of the files at the end of a soak, by the tables and the folder alone."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from typing import TYPE_CHECKING

from benchmarks.soak.crowd import environment
from benchmarks.soak.records import FILES
from chatmemory_django.contrib.files.models import MediaFile, MediaReference
from chatmemory_django.contrib.files.reading import decoded
from chatmemory_django.db import row_codec
from chatmemory_django.db.row_codec import Address
from chatmemory_django.models import Message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.soak.servers import Server

NAMED = re.compile(r'"sha256":"(\w{64})"|\\u0002(\w{64}):')
"""The SHA-256 of a file in the payload of a message."""

REPAIR = """
import django, datetime
django.setup()
from chatmemory_django.contrib.files.findings import check_files
check_files("default", lambda finding: None, repair=True, age=datetime.timedelta(minutes=-1))
"""


def left_over(server: Server) -> int:
    """Let a repair delete the files that killed workers and rolled back transactions have left; return how many."""
    before = len(_there(server))
    environ = environment({"default": server.plain()}, server.folder)
    subprocess.run([sys.executable, "-c", REPAIR], env=environ, check=True)
    return before - len(_there(server))


def wrong_files(server: Server) -> Iterator[str]:
    """Yield what is wrong with the files, references and messages of *server*."""
    using = server.name
    rows = Message.objects.using(using).filter(payload__isnull=False)
    needed = {
        (conversation, sequence, sha256)
        for conversation, sequence, payload in rows.values_list("conversation_id", "sequence", "payload")
        for found in NAMED.findall(payload)
        for sha256 in filter(None, found)
    }
    references = MediaReference.objects.using(using)
    referred = set(references.values_list("conversation_id", "sequence", "file__sha256"))
    stored = MediaFile.objects.using(using).values_list("name", "owner", "sha256", "key_id", "pk")
    files = {name: rest for name, *rest in stored}
    there = _there(server)
    for what, found in {
        "references too few": needed - referred,
        "references too many": referred - needed,
        "rows of files too many": {pk for *_, pk in files.values()} - set(references.values_list("file_id", flat=True)),
        "files too few": files.keys() - there,
        "files too many": there - files.keys(),
    }.items():
        if found:
            yield f"{len(found)} {what}: {sorted(found)[:3]}"
    coder = row_codec.at(Address(using))
    for name in sorted(files.keys() & there):
        owner, sha256, key_id, _pk = files[name]
        content = decoded(coder, (server.folder / FILES / name).read_bytes(), key_id, owner, sha256)
        if content is None or hashlib.sha256(content).hexdigest() != sha256:
            yield f"{name} has another content"


def _there(server: Server) -> set[str]:
    folder = server.folder / FILES
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
