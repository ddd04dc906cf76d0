"""
Write the dumps of a release, again: ``python -m tests.database.release.dump``.

Each is of a site that was made, filled by every verb, and dumped in a process of its own.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

DUMPS = {"plain": "", "sealed": "1"}
"""The names of the sites, and what ``SEALED`` is for them."""


def file_of(name: str) -> Path:
    return Path(__file__).with_name(f"{name}.json")


def dumped(name: str) -> dict[str, Any]:
    """Return the dump *name*."""
    found: dict[str, Any] = json.loads(file_of(name).read_text(encoding="utf-8"))
    return found


def environment(name: str, database_url: str, folder: str | Path) -> dict[str, str]:
    """Return what a process of the site *name* is started with."""
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.database.release.site",
        "DATABASE_URL": database_url,
        "SEALED": DUMPS[name],
        "FILES": str(folder),
    }


def main() -> None:
    """Make, fill and dump the site of this process, if it is one; otherwise start one for each dump."""
    if len(sys.argv) > 1:
        import django
        from django.core.management import call_command

        django.setup()
        from tests.database.release import filling, frozen

        if later := [path for path in frozen.migrations() if "0001_" not in path]:
            sys.exit(f"The tables of 0.1 are frozen, since there is {later[0]}.")
        call_command("migrate", verbosity=0)
        filling.fill()
        text = json.dumps(frozen.dump(), indent=1, sort_keys=True, ensure_ascii=False)
        file_of(sys.argv[1]).write_text(f"{text}\n", encoding="utf-8")
        return
    for name in DUMPS:
        with tempfile.TemporaryDirectory() as folder:
            started = environment(name, f"sqlite:///{folder}/db.sqlite3", Path(folder, "files"))
            subprocess.run([sys.executable, "-m", "tests.database.release.dump", name], env=started, check=True)
            sys.stdout.write(f"{file_of(name)}: {file_of(name).stat().st_size:,} bytes\n")
    if unfilled := set.intersection(*(set(dumped(name)["unfilled"]) for name in DUMPS)):
        sys.exit(f"No verb has filled {', '.join(sorted(unfilled))}: do so in tests/database/release/filling.py.")


if __name__ == "__main__":
    main()
