"""What the README shows, but cannot run."""

import inspect
import re
from pathlib import Path

from chatmemory_django import checks, conf
from example_project.models import Feedback

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_model_it_shows_is_that_of_the_example_site():
    source = inspect.getsource(Feedback)

    assert source[: source.index("\n    def __str__")].strip() in README


def test_it_lists_every_check_and_every_setting():
    ids = re.findall(r'"chatmemory\.(.\d+)"', inspect.getsource(checks))

    assert [check for check in ids if check not in README] == []
    assert all(f'"{name}":' in README for name in conf.NAMES)


def test_the_default_settings_it_shows_are_the_defaults():
    shown: dict = {}

    block = README[README.index("CHATMEMORY = {") :]
    exec(block[: block.index("```")], shown)

    assert shown["CHATMEMORY"] == {
        "MEMORY": conf.DEFAULT_MEMORY,
        "KEEP_HISTORY": conf.keep_history(),
        "MAX_MESSAGE_BYTES": conf.DEFAULT_MAX_MESSAGE_BYTES,
        "ALLOW_NETWORK": conf.allow_network(),
        "REMOTE_MEDIA": conf.remote_media(),
        "REST": {},
    }


def test_the_default_settings_of_the_rest_api_it_shows_are_the_defaults():
    shown: dict = {}

    block = README[README.index('CHATMEMORY = {\n    "REST"') :]
    exec(block[: block.index("```")], shown)

    assert shown["CHATMEMORY"]["REST"] == conf.DEFAULT_REST
