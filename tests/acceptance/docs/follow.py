"""Follow the page "Get started" with all of its commands: ``python -m tests.acceptance.docs.follow WORK_FOLDER``."""

import os
import sys
from pathlib import Path

from tests.acceptance.docs import following

page = following.PAGE.read_text()
follower = following.Follower(Path(sys.argv[1]), os.environ, installs=True)
follower.follow(page)
origin = follower.run('python -c "import chatmemory_django; print(chatmemory_django.__file__)"').strip()
if not Path(origin).is_relative_to(follower.folder):
    raise RuntimeError(f"The page is to use the installed package, not {origin}.")
with follower.serving() as browser:
    following.check(following.converse(page, browser))
sys.stdout.write(f"A chat that streams and remembers, with {origin}.\n")
