"""The code of the pages on WebSockets and Docker."""

import json
import sys
from types import ModuleType

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core.management import get_commands

from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.models import Message
from tests.acceptance.docs.pages import block_of, execute
from tests.asgi import run
from tests.faces.chat.scripted import ScriptedModel


class Consumer:
    """Channels' consumer, as far as the page uses it: it keeps what is sent."""

    def __init__(self, user: User | AnonymousUser, memory_id: str) -> None:
        self.scope = {"user": user, "url_route": {"kwargs": {"memory_id": memory_id}}}
        self.sent: list = []

    async def accept(self) -> None:
        self.sent.append("accepted")

    async def close(self, code: int) -> None:
        self.sent.append(code)

    async def send_json(self, content: dict) -> None:
        self.sent.append(content)


@pytest.mark.django_db(transaction=True)
class TestTheConsumer:
    @pytest.fixture
    def consumer(self, monkeypatch) -> type[Consumer]:
        modules = {
            "channels": {},
            "channels.generic": {},
            "channels.generic.websocket": {"AsyncJsonWebsocketConsumer": Consumer},
            "mysite": {},
            "mysite.assistants": {"assistant": Assistant(ScriptedModel("On its way.", "Tomorrow."))},
        }
        for name, values in modules.items():
            module = ModuleType(name)
            module.__dict__.update(values)
            monkeypatch.setitem(sys.modules, name, module)
        return execute(block_of("recipes/websockets.md", "class ChatConsumer"))["ChatConsumer"]

    def test_streams_to_its_user_and_to_nobody_else(self, consumer):
        ann, bob = (User.objects.create_user(name) for name in ("ann", "bob"))

        def ask(user: User) -> list:
            opened = consumer(user, "parcel")

            async def talk() -> None:
                await opened.connect()
                await opened.receive_json({"text": "Where is it?"})

            run(talk())
            return opened.sent

        first, *pieces, last = ask(ann)
        assert (first, "".join(each["text"] for each in pieces).strip(), last) == (
            "accepted",
            "On its way.",
            {"end": True},
        )
        assert ask(bob) == ["accepted", 4403]
        assert [row.type for row in Message.objects.order_by("sequence")] == ["USER", "AI"]

    def test_lets_nobody_in_who_is_not_signed_in(self, consumer):
        opened = consumer(AnonymousUser(), "parcel")

        run(opened.connect())

        assert opened.sent == [4401]


class TestDocker:
    """The files of the page, as far as they can be checked without Docker."""

    def test_the_services_start_what_there_is(self):
        services = pytest.importorskip("yaml").safe_load(block_of("docker.md", "services:", "yaml"))["services"]
        commands = {" ".join(each["command"]) for each in services.values() if "command" in each}

        assert {command.split()[2] for command in commands} - {"migrate"} <= get_commands().keys()
        assert {name for each in services.values() for name in each.get("depends_on", ())} <= services.keys()

    def test_the_server_gets_as_long_to_hand_over_as_the_image_asks_for(self):
        dockerfile, compose = (block_of("docker.md", *each) for each in (("CMD", "dockerfile"), ("services:", "yaml")))
        started = json.loads(dockerfile.partition("CMD ")[2])

        assert "--no-proxy-headers" in started
        assert int(started[started.index("--timeout-graceful-shutdown") + 1]) == 30 < 40
        assert "stop_grace_period: 40s" in compose
