"""The requests that the pages send with curl, and with fetch in a browser, are answered by a live site."""

import json
import re
import shutil
import subprocess

import pytest
from django.contrib.auth.models import User
from rest_framework.authtoken.models import Token

from chatmemory_django.models import Conversation
from tests.acceptance.docs.pages import block_of

pytestmark = pytest.mark.django_db(transaction=True)
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="It requires curl: apt-get install curl")


@pytest.fixture
def anna() -> User:
    return User.objects.create_user("anna", password="secret")


def commands(page: str, part: str) -> list[str]:
    """Return the commands of the console block of *page* that contains *part*."""
    return re.findall(r"^\$ ((?:.*\\\n)*.*)$", block_of(page, part, "console"), re.MULTILINE)


def run(lines: list[str], site: str, **replaced: str) -> str:
    """Return the output of a shell that runs *lines*, with the live site instead of the one on the page."""
    script = "\n".join(lines).replace("http://127.0.0.1:8000", site)
    for before, after in replaced.items():
        script = script.replace(before, after)
    ran = subprocess.run(
        ["bash", "-ec", script.replace("curl ", "curl -sS --fail-with-body ")],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr + ran.stdout
    return ran.stdout


@needs_curl
class TestCurl:
    def test_a_conversation_is_created_and_its_memory_is_read(self, anna: User, live_server):
        token, create, chat, *rest = commands("rest.md", "TOKEN=")
        token = f"TOKEN={Token.objects.create(user=anna).key}"

        created = json.loads(run([token, create], live_server.url))
        chat = re.sub(r"[^/]+$", created["memory_id"], chat)
        output = run([token, chat, rest[0], "echo", rest[1]], live_server.url)

        [sent] = json.loads(output.splitlines()[-1])["messages"]
        assert sent["message"] == {"role": "user", "content": "Where is my parcel?"}
        assert Conversation.objects.get().owner == anna

    def test_a_token_is_created_for_a_password(self, anna: User, live_server):
        output = run(commands("rest.md", "password=…"), live_server.url, **{"password=…": "password=secret"})

        assert json.loads(output) == {"token": Token.objects.get(user=anna).key}

    def test_the_chat_answers_with_a_stream(self, anna: User, live_server):
        token = f"TOKEN={Token.objects.create(user=anna).key}"

        output = run([token, *commands("chat-over-http.md", "curl -N")], live_server.url)

        assert output.startswith('data: {"type":"start","messageId":')
        assert '"type":"text-delta"' in output
        assert output.endswith("data: [DONE]\n\n")
