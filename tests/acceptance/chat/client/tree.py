"""Run a script against the example site under uvicorn, with a scripted model.

python tree.py FOLDER SCRIPT    the folder has the packages and the script; the database is that of ``DATABASE_URL``

The script gets the site's address, the token of a user, and that of a server of the site.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.acceptance.chat.client.drive import ROOT, Model, Server, prepare
from tests.faces.chat.server import serving


def main(folder: Path, script: str) -> None:
    """Run *script*; see the module's docstring."""
    tokens = prepare(), prepare("add_message", "delete_message")
    uvicorn = [sys.executable, "-m", "uvicorn", "example_project.asgi:application", "--log-level", "warning"]
    settings = {"DJANGO_SETTINGS_MODULE": "tests.acceptance.chat.greeting_settings", "OPENAI_API_KEY": "key"}
    with serving() as model_server, Server(uvicorn, ROOT, OPENAI_BASE_URL=model_server.url, **settings) as site:
        Model(model_server)
        command = ["bin/python"] if script.endswith(".py") else ["npx", "node"]
        subprocess.run([*command, script, f"http://127.0.0.1:{site.port}", *tokens], cwd=folder, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2])
