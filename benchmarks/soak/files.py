"""``python -m benchmarks.soak.files``: writers at the same few files, then a count of what is too many or too few."""

from __future__ import annotations

import argparse
import base64
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

WRITERS = 6
FILES = 6
"""How many different files there are: so few that writers often add one that another removes."""

PLACES = 5
"""How many conversations there are, most of one owner."""


def main() -> None:
    """Run the soak in a database, and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--database", required=True, help="a JSON object: an entry of DATABASES, for a new database")
    parser.add_argument("--work", type=int)
    options = parser.parse_args()
    if options.work is not None:
        _set_up(options.database)
        print(json.dumps(work(options.work, options.seconds)))
        return
    os.environ["SOAK_MEDIA"] = folder = tempfile.mkdtemp()
    _set_up(options.database)
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    command = [sys.executable, "-m", "benchmarks.soak.files", "--seconds", str(options.seconds)]
    command += ["--database", options.database, "--work"]
    writers = [subprocess.Popen([*command, str(each)], stdout=subprocess.PIPE) for each in range(WRITERS)]
    done: Counter[str] = Counter()
    for writer in writers:
        output, _ = writer.communicate()
        done.update(json.loads(output) if writer.returncode == 0 else {"a writer died": 1})
    print(dict(sorted(done.items())))
    print(judge(Path(folder)))


def work(number: int, seconds: int) -> Counter[str]:
    """Do random verbs until the time is over; return how often each, and each error, came."""
    from chatmemory_django import operations
    from chatmemory_django.memory import MessageWindowChatMemory
    from chatmemory_django.models import Conversation, Message
    from chatmemory_django.stores.base import ConversationErasedError, MessageNotFoundError
    from chatmemory_django.stores.django import DjangoChatMemoryStore

    done: Counter[str] = Counter()
    dice = random.Random(number)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        key = str(dice.randrange(PLACES))
        store = DjangoChatMemoryStore(keep_history=key != "0")
        memory = MessageWindowChatMemory(max_messages=4, id=key, store=store)
        verb = dice.choices(
            ["add", "read", "remove", "pop", "erase", "fork", "prune", "set", "turn", "import"],
            [30, 20, 12, 6, 2, 3, 3, 4, 4, 3],
        )[0]
        try:
            match verb:
                case "add":
                    memory.add(*(_picture(dice) for _ in range(dice.randint(1, 3))))
                case "read":
                    memory.messages()
                case "remove":
                    rows = Message.objects.filter(conversation__memory_id=key).exclude(payload=None)
                    memory.remove(dice.choice(list(rows.values_list("sequence", flat=True)) or [1]))
                case "pop":
                    memory.pop()
                case "erase":
                    operations.erase(Conversation.objects.filter(memory_id=key))
                case "fork":
                    source = Conversation.objects.filter(memory_id=key).first()
                    if source is not None:
                        operations.fork(source, f"fork-{dice.randrange(4)}-{number}-{done['fork']}")
                case "prune":
                    old = Conversation.objects.filter(memory_id__startswith="fork-")
                    operations.erase(old)
                    operations.prune(
                        Conversation.objects.filter(memory_id=key), history_older_than=timedelta(seconds=1)
                    )
                case "set":
                    memory.set([*memory.messages()[1:], _picture(dice)])
                case "turn":
                    with memory.turn() as turn:
                        turn.add(_picture(dice))
                case "import":
                    lines = "".join(operations.export(Conversation.objects.filter(memory_id=key))).splitlines()
                    operations.import_lines(lines, rename=True, each=lambda one, _: operations.erase(_of(one)))
        except (ConversationErasedError, MessageNotFoundError) as exc:
            done[f"{verb}: {type(exc).__name__}"] += 1
        except Exception as exc:  # noqa: BLE001  # reported
            done[f"ERROR {verb}: {type(exc).__name__}: {str(exc)[:150]}"] += 1
        done[verb] += 1
    return done


def judge(folder: Path) -> dict[str, int]:
    """Return how many files are too many and too few, by the tables and the folder alone."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT conversation_id, sequence, payload FROM chatmemory_message WHERE payload IS NOT NULL")
        needed = {
            (conversation, sequence, content["image"]["file"]["sha256"])
            for conversation, sequence, payload in cursor.fetchall()
            for content in json.loads(payload).get("contents", [])
            if "file" in content.get("image", {})
        }
        cursor.execute(
            "SELECT r.conversation_id, r.sequence, f.sha256, f.name FROM chatmemory_mediareference r "
            "JOIN chatmemory_mediafile f ON f.id = r.file_id"
        )
        rows = cursor.fetchall()
        cursor.execute("SELECT name FROM chatmemory_mediafile")
        named = {name for (name,) in cursor.fetchall()}
    referred = {tuple(row[:3]) for row in rows}
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return {
        "messages with files": len(needed),
        "files": len(there),
        "references too few": len(needed - referred),
        "references too many": len(referred - needed),
        "rows of files without a reference": len(named - {row[3] for row in rows}),
        "files too few": len(named - there),
        "files too many": len(there - named),
    }


def _of(conversation):
    return type(conversation).objects.filter(pk=conversation.pk)


def _picture(dice: random.Random):
    from chatmemory_django.messages import Image, ImageContent, UserMessage

    data = random.Random(dice.randrange(FILES)).randbytes(3_000)
    return UserMessage([ImageContent(Image(base64_data=base64.b64encode(data).decode()))])


def _set_up(database: str) -> None:
    import django
    from django.conf import settings

    location = {
        "BACKEND": "django.core.files.storage.FileSystemStorage",
        "OPTIONS": {"location": os.environ["SOAK_MEDIA"]},
    }
    settings.configure(
        SECRET_KEY="nothing here is secret",
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "chatmemory_django"],
        DATABASES={"default": json.loads(database)},
        USE_TZ=True,
        STORAGES={"chats": location},
        CHATMEMORY={"MEDIA_STORAGE": "chats", "MEDIA_MIN_BYTES": 100},
    )
    django.setup()


if __name__ == "__main__":
    main()
