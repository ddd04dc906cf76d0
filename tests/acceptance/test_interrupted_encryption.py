"""An encryption of what is stored whose process is killed."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.database.contrib.importing.test_openai import HI
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
SITE = "tests.acceptance.sites.encryption"
CONVERSATIONS, MESSAGES = 60, 50


@pytest.mark.slow
def test_what_a_killed_process_has_encrypted_stays_and_the_next_one_goes_on(tmp_path: Path):
    pytest.importorskip("cryptography")
    database = tmp_path / "db.sqlite3"
    plain = os.environ | {"DATABASE_URL": f"sqlite:///{database}", "PYTHONPATH": str(ROOT)}
    encrypted = plain | {"DJANGO_SETTINGS_MODULE": SITE}

    def manage(environment: dict[str, str], *words: str) -> str:
        command = [sys.executable, str(ROOT / "manage.py"), *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    manage(encrypted, "migrate", "-v0")
    manage(plain, "import_chatmemory", "--from", "openai", str(archive(tmp_path / "sessions.db")))
    before = manage(plain, "export_chatmemory")
    assert counted(database) == (0, CONVERSATIONS * MESSAGES)

    for share in (0.02, 0.1):  # most is left to do when it is killed
        encrypting = subprocess.Popen(
            [sys.executable, str(ROOT / "manage.py"), "encrypt_chatmemory"],
            env=encrypted,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert wait_until(lambda share=share: counted(database)[0] > share * CONVERSATIONS * MESSAGES)
        encrypting.send_signal(signal.SIGKILL)
        encrypting.communicate()

        # What is half encrypted is read as a whole.
        assert 0 < counted(database)[0] < CONVERSATIONS * MESSAGES
        assert manage(encrypted, "export_chatmemory") == before

    left = counted(database)[1]
    last = manage(encrypted, "encrypt_chatmemory")

    assert last == f"Encrypted {left:,} rows.\n"
    assert counted(database) == (CONVERSATIONS * MESSAGES, 0)
    assert manage(encrypted, "export_chatmemory") == before
    assert manage(encrypted, "encrypt_chatmemory", "--dry-run") == "0 rows to encrypt.\n"


def archive(path: Path) -> Path:
    """Write sessions of the Agents SDK to *path*."""
    with sqlite3.connect(path) as writing:
        writing.execute("CREATE TABLE agent_messages (id INTEGER PRIMARY KEY, session_id, message_data, created_at)")
        writing.executemany(
            "INSERT INTO agent_messages VALUES (?, ?, ?, NULL)",
            (
                (row, f"s{row % CONVERSATIONS}", json.dumps({**HI, "content": f"{row} 🙂"}))
                for row in range(CONVERSATIONS * MESSAGES)
            ),
        )
    writing.close()
    return path


def counted(database: Path) -> tuple[int, int]:
    """Return how many messages are encrypted, and how many are plain."""
    reading = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    sql = (
        "SELECT COALESCE(SUM(text LIKE 'enc2:%'), 0), COALESCE(SUM(text NOT LIKE 'enc2:%'), 0) FROM chatmemory_message"
    )
    (found,) = reading.execute(sql).fetchall()
    reading.close()
    return found
