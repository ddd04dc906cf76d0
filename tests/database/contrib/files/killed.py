"""
Erasures of a conversation with a file, the storage being down, in processes that are killed before their first, second,
third … statement, and what a prune makes of them once it is up again. In the database in ``DATABASE_URL``.

    python -m tests.database.contrib.files.killed FOLDER

prints one line of JSON for each kill, until a process is not killed any more.
"""

import json
import os
import signal
import sys
from itertools import count
from pathlib import Path
from typing import Any


def main(folder: Path) -> None:
    import django

    django.setup()

    from django.conf import settings
    from django.core.files.storage import FileSystemStorage, storages
    from django.core.management import call_command
    from django.db import connection, connections

    from chatmemory_django import operations
    from chatmemory_django.contrib.files.models import MediaDeletion, MediaFile
    from chatmemory_django.memory import MessageWindowChatMemory
    from chatmemory_django.models import Conversation, ErasedConversation, Message, remains
    from chatmemory_django.stores.django import DjangoChatMemoryStore
    from tests.pictures import picture, stored_in, use_storage

    backend = "django.core.files.storage.FileSystemStorage"
    use_storage(settings, {"BACKEND": backend, "OPTIONS": {"location": str(folder / "files")}})
    if connection.vendor == "sqlite":
        call_command("migrate", verbosity=0)
    remains.SHORT = 3  # so that its messages, and its file, go after it

    def down(storage: object, name: str) -> None:
        raise ConnectionError

    def erase(number: int) -> None:
        left = count(1)

        def wrapper(execute: Any, *statement: Any) -> Any:
            if next(left) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return execute(*statement)

        FileSystemStorage.delete = down  # type: ignore[method-assign,assignment]
        connection.execute_wrappers.append(wrapper)
        operations.erase(Conversation.objects.filter(memory_id="killed"))

    def in_child(number: int) -> int:
        connections.close_all()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                erase(number)
                code = 0
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def state() -> list[int]:
        return [len(stored_in(storages["chats"])), MediaDeletion.objects.count(), Message.objects.count()]

    for length in (1, 5):
        for number in count(1):
            memory = MessageWindowChatMemory(max_messages=9, id="killed", store=DjangoChatMemoryStore())
            memory.add(*(picture(1, str(each)) for each in range(length)))
            code = in_child(number)
            there = Conversation.objects.filter(memory_id="killed").exists()
            files, deletions, _messages = state()
            is_known = files == 1 and deletions + MediaFile.objects.count() == 1
            is_gone = not there and is_known and (deletions == 1 or ErasedConversation.objects.exists())
            outcome = "gone, and its file is to be deleted" if is_gone else "forgotten"
            if there and is_known and (deletions, len(memory.messages())) == (0, length):
                outcome = "as before"
            Conversation.objects.all().delete() if there else operations.prune(Conversation.objects.all())
            sys.stdout.write(json.dumps({"length": length, "outcome": outcome, "after the prune": state()}) + "\n")
            if code == 0:
                break
            if code != -signal.SIGKILL:
                raise RuntimeError(f"The erasure ended with {code}.")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
