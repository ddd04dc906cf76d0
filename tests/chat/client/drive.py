"""
Drives the page of ``page/`` in Chromium, against the example site under uvicorn; its model says what is scripted.

    python drive.py PAGE_FOLDER    where the page is built; the database is that of ``DATABASE_URL``

With ``SCREENSHOTS=folder`` in the environment, a picture of each page is left there.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from threading import Event
from typing import Any, Self
from urllib.parse import quote
from uuid import uuid4

import django
from django.core.management import call_command
from playwright.sync_api import BrowserContext, ConsoleMessage, Locator, Page, expect, sync_playwright

from tests.chat.server import DONE, USAGE, ModelServer, Reply, Request, Step, answer_to, chunk, refusal, serving

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
ROOT = Path(__file__).resolve().parents[3]


class Model:
    """What the model's server says. It numbers what it answers, so that no two answers are the same."""

    def __init__(self, server: ModelServer) -> None:
        self.server = server
        self.count = 0
        self.go_on = Event()
        self.is_failing = False
        server.replies.append(self.reply)

    @property
    def last_asked(self) -> list[dict[str, Any]]:
        """The last messages that the model was sent, but for the system's."""
        return [message for message in self.server.requests[-1].body["messages"] if message["role"] != "system"]

    def reply(self, request: Request) -> Reply:
        """Answer a request of a scripted kind."""
        last = request.body["messages"][-1]
        content = last["content"]
        text = content if isinstance(content, str) else " ".join(part.get("text", "a file") for part in content)
        self.count += 1
        if last["role"] == "tool":
            return self.say(request, f"{self.count}. The tool says: {text}")
        if self.is_failing:
            return Reply((repr(refusal()).encode(),), 400, {"content-type": "application/json"})
        if city := re.fullmatch(r"Weather in (\w+)\?", text):
            function = {"name": "get_weather", "arguments": f'{{"city": "{city[1]}"}}'}
            call = {"id": f"call_{self.count}", "type": "function", "function": function}
            return answer_to(request, {"content": "Let me see. ", "tool_calls": [call]}, "tool_calls", USAGE)
        if text.startswith("Slowly"):
            self.go_on.clear()
            return self.stream(f"{self.count}. One", self.go_on, " two.")
        if text.startswith("Endlessly"):
            return self.stream(f"{self.count}. One", Step.AWAIT_CLIENT)
        if text.startswith("Think"):
            return answer_to(request, {"reasoning_content": "Hm, so.", "content": f"{self.count}. Yes."}, "stop", USAGE)
        return self.say(request, f"{self.count}. You say: {text}")

    def say(self, request: Request, text: str) -> Reply:
        """Answer *text*."""
        return answer_to(request, {"content": text}, "stop", USAGE)

    def stream(self, *parts: Any) -> Reply:
        """Answer texts, and do what else *parts* say."""
        sent = [chunk({"content": part}) if isinstance(part, str) else part for part in parts]
        end = [chunk(finish_reason="stop"), chunk(usage=USAGE), DONE]
        return Reply((*sent, *end), headers={"content-type": "text/event-stream"})


class Chat:
    """A page with a chat, as somebody in front of it sees it."""

    def __init__(self, page: Page, address: str, front: Server) -> None:
        self.page = page
        self.address = address
        self.front = front
        """The server of the page, by which it reaches the site."""
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self.note)
        self.load()

    def note(self, message: ConsoleMessage) -> None:
        """Keep what the page complains of; a response that is an error is part of some tests."""
        if message.type in {"error", "warning"} and "Failed to load resource" not in message.text:
            self.errors.append(message.text)

    def load(self) -> None:
        """Load the page, for the first time or again."""
        self.page.goto(self.address)
        expect(self.status).not_to_be_empty()

    @property
    def status(self) -> Locator:
        """The status that useChat has."""
        return self.page.locator("output")

    @property
    def messages(self) -> Locator:
        """All messages."""
        return self.page.locator("article")

    @property
    def alert(self) -> Locator:
        """An error."""
        return self.page.get_by_role("alert")

    @property
    def answer(self) -> Locator:
        """The last answer."""
        return self.page.locator("article[data-role=assistant]").last

    def question(self, number: int) -> Locator:
        """The message of the user of that number, from 0 on."""
        return self.page.locator("article[data-role=user]").nth(number)

    def send(self, text: str) -> None:
        """Say *text*."""
        self.page.get_by_label("Message").fill(text)
        self.press("Send")

    def press(self, name: str, within: Locator | None = None) -> None:
        """Press a button."""
        (within or self.page).get_by_role("button", name=name).click()

    def expect_answer(self, text: str) -> None:
        """See the answer come to its end, with what it took."""
        expect(self.answer.locator(".text").last).to_have_text(re.compile(text))
        expect(self.status).to_have_text("ready")
        expect(self.answer.locator("footer")).to_have_text(re.compile(r"gpt-test-2026 \d+ stop"))
        expect(self.alert).to_have_count(0)

    def seen(self) -> list[str]:
        """Return all that can be seen of the messages, their ids too."""
        return self.messages.evaluate_all("all => all.map(each => each.outerHTML)")

    def expect_same_after_reload(self) -> None:
        """See that what is loaded from the history is what the page held."""
        before = self.seen()
        self.load()
        expect(self.status).to_have_text("ready")
        assert self.seen() == before


def streams(chat: Chat, model: Model) -> None:
    """An answer is seen while it is made."""
    chat.send("Slowly, please.")
    expect(chat.answer.locator(".text")).to_have_text(re.compile("One$"))
    expect(chat.status).to_have_text("streaming")
    model.go_on.set()
    chat.expect_answer("One two.$")
    chat.expect_same_after_reload()


def thinks(chat: Chat, model: Model) -> None:
    """What the model thinks is seen, apart from what it says."""
    chat.send("Think!")
    chat.expect_answer("Yes.")
    expect(chat.answer.locator(".reasoning")).to_have_text("Hm, so.")
    chat.expect_same_after_reload()


def uses_tools(chat: Chat, model: Model) -> None:
    """A call is seen with its result, and one that fails with its error."""
    for city, state in (("Oslo", "output-available"), ("Atlantis", "output-error")):
        chat.send(f"Weather in {city}?")
        chat.expect_answer(f"The tool says: .*{city}")
        call = chat.answer.locator("dl")
        expect(call).to_have_attribute("data-state", state)
        expect(call.locator("dt")).to_have_text(f'get_weather({{"city":"{city}"}})')
        expect(call.locator("dd")).to_contain_text(city)
        expect(chat.answer.locator(".text").first).to_have_text("Let me see. ")
    assert chat.messages.count() == 4
    chat.expect_same_after_reload()


def stops(chat: Chat, model: Model) -> None:
    """Stop ends the call of the model, and what has come stays; the conversation goes on from there."""
    chat.send("Endlessly, please.")
    expect(chat.answer.locator(".text")).to_have_text(re.compile("One$"))
    model.server.client_has_left.clear()
    chat.press("Stop")
    expect(chat.status).to_have_text("ready")
    assert model.server.client_has_left.wait(10)
    chat.load()
    expect(chat.status).to_have_text("ready")
    expect(chat.answer).to_contain_text("Stopped.")
    expect(chat.answer.locator(".text")).to_have_text(re.compile("One$"))
    chat.send("And now?")
    chat.expect_answer("You say: And now?")
    said = [message["content"] for message in model.last_asked]
    assert [said[0], said[2]] == ["Endlessly, please.", "And now?"]
    assert chat.messages.count() == 4
    chat.expect_same_after_reload()


def regenerates(chat: Chat, model: Model) -> None:
    """Another answer takes the place of one, of the last and of one further up, before and after a reload."""
    chat.send("First")
    chat.expect_answer("You say: First")
    chat.send("Second")
    chat.expect_answer("You say: Second")
    for reload in (False, True):
        if reload:
            chat.load()
        before = chat.answer.inner_text()
        chat.press("Regenerate", chat.answer)
        chat.expect_answer("You say: Second")
        assert chat.answer.inner_text() != before
        assert chat.messages.count() == 4
        assert [message["role"] for message in model.last_asked] == ["user", "assistant", "user"]
        chat.expect_same_after_reload()
    chat.press("Regenerate", chat.page.locator("article[data-role=assistant]").first)
    expect(chat.messages).to_have_count(2)
    chat.expect_answer("You say: First")
    assert [message["content"] for message in model.last_asked] == ["First"]
    chat.expect_same_after_reload()


def edits(chat: Chat, model: Model) -> None:
    """What was said is said in other words: the model is sent those alone. Again and again, also after a reload."""
    for text in ("First", "Second"):
        chat.send(text)
        chat.expect_answer(f"You say: {text}")
    for text in ("Third", "Fourth"):
        chat.press("Edit", chat.question(0))
        expect(chat.page.get_by_label("Message")).not_to_be_empty()
        chat.send(text)
        expect(chat.messages).to_have_count(2)
        chat.expect_answer(f"You say: {text}")
        assert [message["content"] for message in model.last_asked] == [text]
        chat.expect_same_after_reload()
    chat.send("Fifth")
    chat.expect_answer("You say: Fifth")
    assert [message["content"] for message in model.last_asked if message["role"] == "user"] == ["Fourth", "Fifth"]
    chat.expect_same_after_reload()


def resumes(chat: Chat, model: Model) -> None:
    """A page that is loaded again while the answer is made shows what has come, once, and the rest as it comes."""
    chat.send("Slowly, please.")
    expect(chat.answer.locator(".text")).to_have_text(re.compile("One$"))
    for _ in range(2):
        chat.load()
        expect(chat.answer.locator(".text")).to_have_text(re.compile(r"^\d+\. One$"))
        expect(chat.status).to_have_text("streaming")
        assert chat.messages.count() == 2
    other = Chat(chat.page.context.new_page(), chat.address, chat.front)
    expect(other.answer.locator(".text")).to_have_text(re.compile(r"^\d+\. One$"))
    model.go_on.set()
    for each in (chat, other):
        each.expect_answer(r"^\d+\. One two.$")
        assert each.messages.count() == 2
        each.expect_same_after_reload()
    assert not other.errors, other.errors
    other.page.close()


def reconnects(chat: Chat, model: Model) -> None:
    """An answer goes on where the network does not; meanwhile there is no second one, and afterwards it is there."""
    chat.send("Slowly, please.")
    expect(chat.answer.locator(".text")).to_have_text(re.compile("One$"))
    chat.front.stop()
    expect(chat.status).to_have_text("error")
    chat.front.start()
    chat.press("Retry")
    expect(chat.alert).to_contain_text("Another answer is being made in this conversation")
    chat.load()
    expect(chat.status).to_have_text("streaming")
    model.go_on.set()
    chat.expect_answer(r"^\d+\. One two.$")
    assert chat.messages.count() == 2
    chat.expect_same_after_reload()


def recovers(chat: Chat, model: Model) -> None:
    """After an error, the same can be tried again, or something else be said. The model's words are not shown."""
    model.is_failing = True
    chat.send("First")
    expect(chat.alert).to_contain_text("The model gave no answer.")
    assert "secret" not in chat.page.content()
    chat.press("Retry")
    expect(chat.status).to_have_text("error")
    model.is_failing = False
    chat.press("Retry")
    chat.expect_answer("You say: First")
    assert chat.messages.count() == 2
    assert [message["content"] for message in model.last_asked] == ["First"]
    chat.expect_same_after_reload()
    model.is_failing = True
    chat.send("Second")
    expect(chat.alert).to_contain_text("The model gave no answer.")
    chat.load()
    expect(chat.question(1)).to_contain_text("Second")
    model.is_failing = False
    chat.send("Third")
    chat.expect_answer("You say: Third")
    chat.expect_same_after_reload()


def takes_files(chat: Chat, model: Model) -> None:
    """A picture reaches the model, and comes back; a file of another type is refused with a reason."""
    files = chat.page.get_by_label("Files")
    files.set_input_files({"name": "ä.png", "mimeType": "image/png", "buffer": PNG})
    chat.send("What is this?")
    chat.expect_answer("You say: a file What is this?")
    image, text = model.last_asked[-1]["content"]
    assert image["image_url"]["url"] == f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    assert text["text"] == "What is this?"
    expect(chat.question(0).get_by_alt_text("ä.png")).to_be_visible()
    chat.expect_same_after_reload()
    files.set_input_files({"name": "a.html", "mimeType": "text/html", "buffer": b"<b>"})
    chat.send("And this?")
    expect(chat.alert).to_contain_text("mediaType: it must be that of an image, audio, video or application/pdf")
    chat.load()
    assert chat.messages.count() == 2


SCENES: list[Callable[[Chat, Model], None]] = [
    streams,
    thinks,
    uses_tools,
    stops,
    regenerates,
    edits,
    resumes,
    reconnects,
    recovers,
    takes_files,
]

CHAT_IDS: list[Callable[[], str]] = [
    lambda: uuid4().hex[:16],  # as the AI SDK makes them
    lambda: f"../a chat/{uuid4()}?#ä",  # as they should not be
]


class Server:
    """A process that listens on a port, for as long as a block lasts."""

    def __init__(self, command: list[str], folder: Path, **environment: str) -> None:
        self.port = free_port()
        self.command = [*command, "--port", str(self.port)]
        self.folder = folder
        self.environment = environment

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *args: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self.process = subprocess.Popen(self.command, cwd=self.folder, env={**os.environ, **self.environment})
        while self.process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.1)
        raise RuntimeError(f"{self.command} has ended with {self.process.returncode}.")

    def stop(self) -> None:
        """Stop it."""
        self.process.kill()
        self.process.wait()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def prepare() -> str:
    """Make the tables and somebody who chats, and return the token of that."""
    django.setup()
    call_command("migrate", verbosity=0)
    from django.contrib.auth.models import User  # once Django is set up
    from rest_framework.authtoken.models import Token

    user = User.objects.create_user(f"stranger-{uuid4().hex}")
    return Token.objects.create(user=user).key


def play(context: BrowserContext, front: Server, model: Model) -> None:
    """Play all scenes, each in a chat of its own, where the page sends all messages and where it sends the last one."""
    chat_ids = cycle(CHAT_IDS)
    for sends in ("", "&last"):
        for scene in SCENES:
            # A picture fits only the memory that the example gives to chats whose id is a UUID.
            chat_id = str(uuid4()) if scene is takes_files else next(chat_ids)()
            address = f"http://127.0.0.1:{front.port}/?chat={quote(chat_id, safe='')}{sends}"
            chat = Chat(context.new_page(), address, front)
            scene(chat, model)
            assert not chat.errors, chat.errors
            if folder := os.environ.get("SCREENSHOTS"):
                chat.page.screenshot(path=f"{folder}/{scene.__name__}.png", full_page=True)
            chat.page.close()
            print(f"In Chromium, useChat {scene.__name__.replace('_', ' ')}.", flush=True)


def main(folder: Path) -> None:
    """See above."""
    token = prepare()
    uvicorn = [sys.executable, "-m", "uvicorn", "example_project.asgi:application", "--log-level", "warning"]
    vite = ["node", "node_modules/vite/bin/vite.js", "preview", "--host", "127.0.0.1", "--logLevel", "error"]
    with (
        serving() as model_server,
        Server(uvicorn, ROOT, OPENAI_BASE_URL=model_server.url, OPENAI_API_KEY="key") as site,
        Server(vite, folder, BASE_URL=f"http://127.0.0.1:{site.port}") as front,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = browser.new_context()
        context.set_default_timeout(20_000)
        context.add_init_script(f"localStorage.setItem('token', '{token}')")
        play(context, front, Model(model_server))
        browser.close()


if __name__ == "__main__":
    expect.set_options(timeout=20_000)
    main(Path(sys.argv[1]).resolve())
