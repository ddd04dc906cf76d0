"""Following the page "Get started" leads to a chat that streams and remembers."""

import importlib
import os
import re
import sys
from pathlib import Path

import pytest

from tests.acceptance.docs import following

ROOT = Path(__file__).parents[3]
TEXT = following.PAGE.read_text()
pytestmark = pytest.mark.slow

UNSET = {"DJANGO_SETTINGS_MODULE", "DATABASE_URL", "OPENAI_API_KEY", "OPENAI_BASE_URL"}


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """A follower of the whole page, with this interpreter and this checkout in place of what the page installs."""
    variables = {name: value for name, value in os.environ.items() if name not in UNSET}
    variables["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), variables["PATH"]])
    variables["PYTHONPATH"] = str(ROOT)
    follower = following.Follower(tmp_path_factory.mktemp("terminal"), variables, installs=False)
    follower.follow(TEXT)
    return follower


def test_only_the_commands_that_install_are_left_out(followed):
    assert followed.left_out == [
        "python -m venv .venv",
        ". .venv/bin/activate",
        "python -m pip install 'chatmemory_django[offline,openai,rest]' uvicorn",
    ]


def test_the_site_streams_and_remembers_and_its_admin_shows_the_conversation(followed):
    with followed.serving() as browser:
        seen = following.converse(TEXT, browser)

    following.check(seen)


def test_a_user_who_is_not_staff_signs_in_and_chats_on_a_phone(followed):
    sync_api = pytest.importorskip("playwright.sync_api", reason="It requires Playwright: pip install playwright")
    browser = importlib.import_module("tests.acceptance.browser")
    if browser.CHROMIUM is None:
        pytest.skip("It requires Chromium: apt-get install chromium")
    followed.run(
        "python manage.py shell -v 0 -c 'from django.contrib.auth.models import User; "
        'User.objects.create_user("bob", password="x")\''
    )

    with followed.serving() as server, sync_api.sync_playwright() as driver:
        chromium = driver.chromium.launch(
            executable_path=browser.CHROMIUM, args=browser.FLAGS.split(), timeout=browser.PATIENCE
        )
        page = chromium.new_page(viewport=browser.PHONE)
        page.set_default_timeout(browser.PATIENCE)
        page.goto(f"http://127.0.0.1:{server.port}/")
        page.fill("[name=username]", "bob")
        page.fill("[name=password]", "x")
        page.click("[type=submit]")
        page.locator("#welcome").wait_for()
        page.fill("#say", f"Hello {'x' * 100}")
        page.press("#say", "Enter")
        page.locator(".message.assistant", has_text="I was sent: Hello xx").wait_for()
        width = page.evaluate("document.documentElement.scrollWidth")
        chromium.close()

    assert width == browser.PHONE["width"]


def test_the_system_checks_find_nothing(followed):
    assert "no issues" in followed.run("python manage.py check")


def test_the_real_models_that_it_shows_can_be_created(followed):
    steps = list(following.steps(TEXT))
    [offline] = [step for step in steps if (step.what, step.path) == ("file", "mysite/model.py")]
    [real] = [step for step in steps if step.what == "instead"]
    [other] = re.findall(r"`(OpenAiChatModel\(.+?\))`", TEXT)
    name = "from mysite.model import model; print(model.model_name)"

    shown = []
    for text in (real.text, real.text.replace('OpenAiChatModel("gpt-4.1-mini")', other)):
        followed.write(real._replace(text=text))
        shown.append(followed.run(f'python manage.py shell -v 0 -c "{name}"').split())
    followed.write(offline)

    assert shown == [["gpt-4.1-mini"], ["llama3.2"]]


def test_a_block_without_a_file_is_noticed():
    with pytest.raises(ValueError, match=r"No comment names the file of the block that begins with 'print"):
        list(following.steps("```python\nprint()\n```\n"))
