"""The commands of operations.md, those of encryption, media.md and workers.md, each with a filled database."""

import io
import json
import shlex
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command, load_command_class
from django.utils import timezone

from chatmemory_django.contrib.encryption.keys import parse
from chatmemory_django.memory import MessageWindowChatMemory
from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.operations import check
from chatmemory_django.provider import known_window
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.acceptance.docs.pages import DOCS, blocks_of
from tests.estimators import ADDITIVE_WORDS

pytestmark = pytest.mark.django_db

LINES = (
    line
    for page in ("operations.md", "encryption.md", "encryption-keys.md", "media.md", "workers.md")
    for block in blocks_of(page, "console")
    for line in block.splitlines()
)
COMMANDS = [line for line in dict.fromkeys(LINES) if "manage.py" in line]

ALL = {"of anna", "idle", "old", "support-4711", "support-4712"}


@pytest.fixture(autouse=True)
def site(settings, monkeypatch, tmp_path: Path) -> None:
    """A site with five conversations and a folder to work in."""
    settings.CHATMEMORY = {
        "MEMORY": {
            "CLASS": "chatmemory_django.memory.TokenWindowChatMemory",
            "OPTIONS": {"max_tokens": 1000, "token_count_estimator": ADDITIVE_WORDS},
        },
        "RETENTION": {"HISTORY_OLDER_THAN": 180, "IDLE": 365},
    }
    monkeypatch.chdir(tmp_path)
    anna, ben = (User.objects.create_user(name) for name in ("anna", "ben"))
    for memory_id, owner in (("of anna", anna), ("idle", ben), ("old", None), ("support-4711", None)):
        fill(memory_id, owner)
    fill("support-4712", None)
    age("idle", 400, is_idle=True)
    age("old", 200)


def fill(memory_id: str, owner: User | None) -> None:
    """Store a conversation of three messages, two of which are in the memory."""
    store = DjangoChatMemoryStore(owner=owner)
    memory = MessageWindowChatMemory(max_messages=2, id=memory_id, store=store)
    memory.add(*(UserMessage(text) for text in ("one", "two", "three")))


def age(memory_id: str, days: int, *, is_idle: bool = False) -> None:
    moment = timezone.now() - timedelta(days=days)
    Message.objects.filter(conversation__memory_id=memory_id).update(created_at=moment)
    if is_idle:
        Conversation.objects.filter(memory_id=memory_id).update(updated_at=moment)


def stored() -> dict[str, int]:
    """Return the number of messages of each conversation."""
    return {each.memory_id: each.messages.count() for each in Conversation.objects.all()}


def run(line: str) -> str:
    """Run a command line of the page and return its output, or write it to the file that the line names."""
    words = shlex.split(line.removeprefix("$ "))
    assert words[:2] == ["python", "manage.py"]
    target = Path(words[-1]) if ">" in words else None
    out = io.StringIO()
    call_command(*words[2 : -2 if target else None], stdout=out, stderr=io.StringIO())
    if target is not None:
        target.write_text(out.getvalue())
    return out.getvalue()


def prune_dry_run(line: str) -> None:
    run(line)
    assert stored() == dict.fromkeys(ALL, 3)


def prune(line: str) -> None:
    run(line)
    assert stored() == {**dict.fromkeys(ALL - {"idle"}, 3), "old": 2}


def erase_user(line: str) -> None:
    run(line)
    receipt = json.loads(Path("receipt.json").read_text())
    assert receipt["erased"] == [{"memory_id": "of anna", "messages": 3}]
    assert {"at", "database", "dry_run", "refused"} < set(receipt)
    assert set(stored()) == ALL - {"of anna"}


def verify(line: str) -> None:
    """What it finds is in ``tests/database/test_verifying.py``."""
    with pytest.raises(CommandError, match="Something is left"):
        run(line)
    Conversation.objects.filter(memory_id="of anna").delete()
    assert run(line) == "Nothing is left in default.\n"


def erase_two(line: str) -> None:
    assert json.loads(run(line))["messages"] == 6
    assert set(stored()) == ALL - {"support-4711", "support-4712"}


def export_all(line: str) -> None:
    run(line)
    lines = Path("conversations.jsonl").read_text().splitlines()
    assert len(lines) == 5 * (1 + 3)


def export_document(line: str) -> None:
    run(line)
    document = Path("anna.html").read_text()
    assert document.startswith("<!DOCTYPE html>")
    assert "of anna" in document


def export_user(line: str) -> None:
    run(line)
    [head, *messages] = map(json.loads, Path("anna.jsonl").read_text().splitlines())
    assert head["memory_id"] == "of anna"
    assert len(messages) == 3


def import_all(line: str) -> None:
    call_command("export_chatmemory", "--output", "conversations.jsonl", verbosity=0)
    Conversation.objects.exclude(memory_id="idle").delete()
    run(line)
    assert stored() == dict.fromkeys(ALL, 3)


def import_for_user(line: str) -> None:
    call_command("export_chatmemory", "--user", "anna", "--output", "anna.jsonl", verbosity=0)
    Conversation.objects.filter(memory_id="of anna").delete()
    run(line)
    assert Conversation.objects.get(memory_id="of anna").owner == User.objects.get(username="ben")


def recount(line: str) -> None:
    assert set(Conversation.objects.values_list("counted_by", flat=True)) == {""}
    run(line)
    assert set(Conversation.objects.values_list("counted_by", flat=True)) == {"words"}


def check_all(line: str) -> None:
    run(line)
    Conversation.objects.filter(memory_id="old").update(memory_messages=7)
    with pytest.raises(CommandError) as failed:
        run(line)
    assert failed.value.returncode == 1


def repair(line: str) -> None:
    Conversation.objects.filter(memory_id="old").update(memory_messages=7)
    with pytest.raises(CommandError):
        run(line)
    assert check(Conversation.objects.all(), known_window, print) == 0


def migrate(line: str) -> None:
    assert "migrat" in run(line).lower()


def check_settings(line: str) -> None:
    run(line)  # an error would be raised


def cache_encodings(line: str) -> None:
    output = run(line)
    [file] = Path("encodings").iterdir()
    assert str(file) in output
    assert "TIKTOKEN_CACHE_DIR" in output


def key(line: str) -> None:
    assert len(parse(run(line).splitlines()[0])[1]) == 32


def encrypt(line: str) -> None:
    """What it does where the app is installed is in ``tests/database/encryption``."""
    with pytest.raises(CommandError, match=r"'chatmemory_django\.contrib\.encryption' is not in INSTALLED_APPS"):
        run(line)


def move(line: str) -> None:
    """What it does where there is a storage is in ``tests/database/test_files.py``."""
    with pytest.raises(CommandError, match="names no storage"):
        run(line)


def work(line: str) -> None:
    """What it does is in ``tests/faces/chat/runs/test_workers.py``, and in ``tests/database/chat/workers``."""
    _, _, _, name, *words = shlex.split(line)
    load_command_class("chatmemory_django", name).create_parser("manage.py", name).parse_args(words)


EFFECTS: dict[str, Callable[[str], None]] = {
    "prune_chatmemory --history-older-than 180 --idle 365 --dry-run": prune_dry_run,
    "prune_chatmemory": prune,
    "erase_chatmemory --user anna > receipt.json": erase_user,
    "verify_chatmemory --user anna": verify,
    "erase_chatmemory --memory-id support-4711 --memory-id support-4712": erase_two,
    "export_chatmemory --output conversations.jsonl": export_all,
    "export_chatmemory --user anna --output anna.jsonl": export_user,
    "export_chatmemory --user anna --format html --output anna.html": export_document,
    "import_chatmemory conversations.jsonl --skip-existing": import_all,
    "import_chatmemory anna.jsonl --user ben --skip-existing": import_for_user,
    "recount_chatmemory": recount,
    "check_chatmemory": check_all,
    "check_chatmemory --repair": repair,
    "chatmemory_key": key,
    "encrypt_chatmemory": encrypt,
    "encrypt_chatmemory --rekey-owners --user ann": encrypt,
    "decrypt_chatmemory": encrypt,
    "move_media_chatmemory": move,
    "run_chatmemory": work,
    "run_chatmemory --contexts mysite.tenants.schemas": work,
    "migrate": migrate,
    "check --database default": check_settings,
    "cache_encodings encodings --encoding o200k_base": cache_encodings,
}
"""What each command of the pages must bring about."""


@pytest.mark.parametrize("line", COMMANDS)
def test_command_has_the_documented_effect(line: str):
    EFFECTS[line.removeprefix("$ python manage.py ")](line)


def test_every_command_of_the_package_is_on_a_page():
    folder = DOCS.parent / "chatmemory_django" / "management" / "commands"
    names = {path.stem for path in folder.glob("*.py")} - {"__init__"}

    assert names <= {line.split()[3] for line in COMMANDS}


@pytest.mark.parametrize(
    ("words", "status"), [(["erase_chatmemory"], 1), (["check_chatmemory", "--user", "nobody"], 1)]
)
def test_a_command_that_fails_has_an_exit_status(words: list[str], status: int):
    with pytest.raises(CommandError) as failed:
        call_command(*words, stdout=io.StringIO())

    assert failed.value.returncode == status
