"""An import whose process is killed."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.database.contrib.importing.test_openai import HI

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_conversations_are_all_imported_after_interruptions_and_none_partially(tmp_path: Path):
    """A process is killed again and again; the last one imports the rest."""
    source = tmp_path / "sessions.db"
    with sqlite3.connect(source) as database:
        database.execute("CREATE TABLE agent_messages (id INTEGER PRIMARY KEY, session_id, message_data, created_at)")
        database.executemany(
            "INSERT INTO agent_messages VALUES (?, ?, ?, NULL)",
            ((row, f"s{row % 200}", json.dumps({**HI, "content": f"{row} 🙂"})) for row in range(2_000)),
        )
    database.close()
    environment = os.environ | {"DATABASE_URL": f"sqlite:///{tmp_path / 'db.sqlite3'}", "PYTHONPATH": str(ROOT)}
    manage = [sys.executable, str(ROOT / "manage.py")]
    subprocess.run([*manage, "migrate", "-v0"], env=environment, check=True)
    command = [*manage, "import_chatmemory", "--from", "openai", str(source)]
    counts = set()
    for _ in range(3):
        moving = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        before = _counts(tmp_path / "db.sqlite3")
        deadline = time.monotonic() + 300
        while moving.poll() is None and _counts(tmp_path / "db.sqlite3") == before and time.monotonic() < deadline:
            time.sleep(0.01)
        moving.send_signal(signal.SIGKILL)
        moving.communicate()
        counts |= set(_counts(tmp_path / "db.sqlite3").values())

    last = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)

    assert counts == {10}
    assert "already existed" in last.stdout
    assert not last.stdout.startswith("Imported 200 ")
    assert _counts(tmp_path / "db.sqlite3") == {f"s{number}": 10 for number in range(200)}


def _counts(database: Path) -> dict[str, int]:
    """Return the number of messages of each conversation in the file."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as reading:
        rows = dict(
            reading.execute(
                "SELECT memory_id, COUNT(*) FROM chatmemory_conversation c JOIN chatmemory_message m "
                "ON m.conversation_id = c.id GROUP BY memory_id"
            )
        )
    reading.close()
    return rows
