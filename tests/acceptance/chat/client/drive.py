"""Drive the page of ``page/`` in Chromium, against the example site under uvicorn, with a scripted model.

    python drive.py PAGE_FOLDER    where the page is built; the database is that of ``DATABASE_URL``

With ``SCREENSHOTS=folder`` in the environment, a picture of each page is left there.
"""

from __future__ import annotations

import base64
import json
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

from tests.faces.chat.server import (
    DONE,
    PATIENCE,
    USAGE,
    ModelServer,
    Reply,
    Request,
    Step,
    answer_to,
    chunk,
    refusal,
    serving,
)
from tests.ports import free_port
from tests.waiting import wait_until

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)
COUNT_RESUMPTIONS = """
    const { fetch } = window;
    window.resumptions = 0;
    window.fetch = async (input, options) => {
        if (!String(input?.url ?? input).endsWith('/stream')) return fetch(input, options);
        window.resumptions++;
        return fetch(input, options).finally(() => setTimeout(() => window.resumptions--));
    };
"""
"""Counts the questions for an answer in progress whose responses useChat has not handled yet."""
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
ROOT = Path(__file__).resolve().parents[4]


class Model:
    """The model's server. It numbers its answers, so that no two are the same."""

    def __init__(self, server: ModelServer) -> None:
        self.server = server
        self.count = 0
        self.go_on = Event()
        self.is_failing = False
        server.replies.append(self.reply)

    @property
    def last_asked(self) -> list[dict[str, Any]]:
        """Return the messages of the last request, without the system message."""
        return [message for message in self.server.requests[-1].body["messages"] if message["role"] != "system"]

    def reply(self, request: Request) -> Reply:
        """Answer a request of a scripted kind."""
        last = request.body["messages"][-1]
        content = last["content"]
        text = content if isinstance(content, str) else " ".join(part.get("text", "a file") for part in content)
        self.count += 1
        if last["role"] == "tool":
            return self.say(request, f"{self.count}. The tool returned: {text}")
        if self.is_failing:
            return Reply((repr(refusal()).encode(),), 401, {"content-type": "application/json"})
        if city := re.fullmatch(r"Weather in (\w+)\?", text):
            function = {"name": "get_weather", "arguments": f'{{"city": "{city[1]}"}}'}
            call = {"id": f"call_{self.count}", "type": "function", "function": function}
            return answer_to(request, {"content": "Let me see. ", "tool_calls": [call]}, "tool_calls", USAGE)
        in_browser = {
            "Where are we?": ("get_time_zone", "{}"),
            "Where am I?": ("get_location", '{"precise": true}'),
            "Which color?": ("get_color", '{"of": "sea"}'),
        }
        if text in in_browser:
            function = dict(zip(("name", "arguments"), in_browser[text], strict=True))
            call = {"id": f"call_{self.count}", "type": "function", "function": function}
            return answer_to(request, {"content": "Your browser knows. ", "tool_calls": [call]}, "tool_calls", USAGE)
        if title := re.fullmatch(r"Call it (\w+)\.", text):
            function = {"name": "rename_conversation", "arguments": f'{{"title": "{title[1]}"}}'}
            call = {"id": f"call_{self.count}", "type": "function", "function": function}
            return answer_to(request, {"content": "May I? ", "tool_calls": [call]}, "tool_calls", USAGE)
        if text.startswith("Slowly"):
            self.go_on.clear()
            return self.stream(f"{self.count}. One", self.go_on, " two.")
        if text.startswith("Endlessly"):
            return self.stream(f"{self.count}. One", Step.AWAIT_CLIENT)
        if text.startswith("Think"):
            return answer_to(request, {"reasoning_content": "Hm, so.", "content": f"{self.count}. Yes."}, "stop", USAGE)
        return self.say(request, f"{self.count}. You wrote: {text}")

    def say(self, request: Request, text: str) -> Reply:
        """Answer with *text*."""
        return answer_to(request, {"content": text}, "stop", USAGE)

    def stream(self, *parts: Any) -> Reply:
        """Stream texts, and run the steps in *parts*."""
        sent = [chunk({"content": part}) if isinstance(part, str) else part for part in parts]
        end = [chunk(finish_reason="stop"), chunk(usage=USAGE), DONE]
        return Reply((*sent, *end), headers={"content-type": "text/event-stream"})


class Chat:
    """A page with a chat, seen through the eyes of its user."""

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
        """Record what the page's console reports; some tests expect error responses."""
        if message.type in {"error", "warning"} and "Failed to load resource" not in message.text:
            self.errors.append(message.text)

    def load(self) -> None:
        """
        Load or reload the page, and wait until it knows whether an answer is in progress. When useChat learns that none
        is, it is "ready": if a message was sent before that, during the answer to this message.
        """
        self.page.goto(self.address)
        expect(self.status).not_to_be_empty()
        # A frame after the status, React has run the effect that asks.
        self.page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
        self.page.wait_for_function("!window.resumptions")

    @property
    def status(self) -> Locator:
        """Return useChat's status."""
        return self.page.locator("output")

    @property
    def messages(self) -> Locator:
        """Return all messages."""
        return self.page.locator("article")

    @property
    def alert(self) -> Locator:
        """Return the error shown, if any."""
        return self.page.get_by_role("alert")

    @property
    def answer(self) -> Locator:
        """Return the last answer."""
        return self.page.locator("article[data-role=assistant]").last

    def question(self, number: int) -> Locator:
        """Return the user's message with this number, counted from 0."""
        return self.page.locator("article[data-role=user]").nth(number)

    def send(self, text: str) -> None:
        """Send *text*."""
        self.page.get_by_label("Message").fill(text)
        self.press("Send")

    def press(self, name: str, within: Locator | None = None) -> None:
        """Press a button."""
        (within or self.page).get_by_role("button", name=name).click()

    def expect_answer(self, text: str) -> None:
        """Expect the answer to end, with its usage."""
        expect(self.answer.locator(".text").last).to_have_text(re.compile(text))
        expect(self.status).to_have_text("ready")
        expect(self.answer.locator("footer")).to_have_text(re.compile(r"gpt-test-2026 \d+ stop"))
        expect(self.alert).to_have_count(0)

    def seen(self) -> list[str]:
        """Return everything visible in the messages, including their ids, except where files come from."""
        return self.messages.evaluate_all('all => all.map(each => each.outerHTML.replace(/ src="[^"]*"/g, \'\'))')

    def expect_same_after_reload(self) -> None:
        """Expect that the messages loaded from the history equal those that the page showed."""
        before = self.seen()
        self.load()
        expect(self.status).to_have_text("ready")
        assert self.seen() == before


def streams(chat: Chat, model: Model) -> None:
    """Show an answer while it is being generated."""
    chat.send("Slowly, please.")
    expect(chat.answer.locator(".text")).to_have_text(re.compile("One$"))
    expect(chat.status).to_have_text("streaming")
    model.go_on.set()
    chat.expect_answer("One two.$")
    chat.expect_same_after_reload()


def thinks(chat: Chat, model: Model) -> None:
    """Show the model's reasoning separately from its answer."""
    chat.send("Think!")
    chat.expect_answer("Yes.")
    expect(chat.answer.locator(".reasoning")).to_have_text("Hm, so.")
    chat.expect_same_after_reload()


def uses_tools(chat: Chat, model: Model) -> None:
    """Show a tool call with its result, and a failed one with its error."""
    for city, state in (("Oslo", "output-available"), ("Atlantis", "output-error")):
        chat.send(f"Weather in {city}?")
        chat.expect_answer(f"The tool returned: .*{city}")
        call = chat.answer.locator("dl")
        expect(call).to_have_attribute("data-state", state)
        expect(call.locator("dt")).to_have_text(f'get_weather({{"city":"{city}"}})')
        expect(call.locator("dd")).to_contain_text(city)
        expect(chat.answer.locator(".text").first).to_have_text("Let me see. ")
    assert chat.messages.count() == 4
    chat.expect_same_after_reload()


def asks_for_approval(chat: Chat, model: Model) -> None:
    """Wait for an approval, also after a reload; run what is approved, and tell the model what is denied."""
    for title, button, state, ending in (
        ("Fjords", "Approve", "output-available", "The tool returned: This conversation is now called “Fjords”."),
        ("Lakes", "Deny", "output-denied", "The tool returned: This call was not approved.* The reason: Not now."),
    ):
        chat.send(f"Call it {title}.")
        call = chat.answer.locator("dl")
        expect(call).to_have_attribute("data-state", "approval-requested")
        expect(chat.status).to_have_text("ready")
        chat.expect_same_after_reload()
        chat.press(button, chat.answer)
        chat.expect_answer(ending)
        expect(call).to_have_attribute("data-state", state)
        chat.expect_same_after_reload()
    assert chat.messages.count() == 4


def runs_tools_in_the_browser(chat: Chat, model: Model) -> None:
    """Answer a call in the page: at once or, if its output was lost on the way, in the next page that is opened."""
    chat.send("Where are we?")
    chat.expect_answer("The tool returned: Europe/Oslo")
    call = chat.answer.locator("dl")
    expect(call).to_have_attribute("data-state", "output-available")
    assert chat.messages.count() == 2
    chat.expect_same_after_reload()
    chat.page.route("**/api/chat", lambda route: route.abort() if _has_output(route.request) else route.fallback())
    chat.send("Where are we?")
    expect(chat.status).to_have_text("error")
    expect(chat.answer.locator("dl")).to_have_attribute("data-state", "output-available")
    other = Chat(chat.page.context.new_page(), chat.address, chat.front)
    other.expect_answer("The tool returned: Europe/Oslo")
    assert other.messages.count() == 4
    other.expect_same_after_reload()
    assert not other.errors, other.errors
    other.page.close()
    chat.load()
    chat.expect_answer("The tool returned: Europe/Oslo")
    assert chat.messages.count() == 4


def _has_output(request: Any) -> bool:
    posted = request.post_data_json
    return bool((posted.get("message") or posted["messages"][-1])["role"] == "assistant")


def stops(chat: Chat, model: Model) -> None:
    """Stop cancels the call of the model, keeps what has arrived, and the conversation continues from there."""
    chat.send("Endlessly, please.")
    expect(chat.answer.locator(".text")).to_have_text(re.compile("One$"))
    model.server.client_has_left.clear()
    chat.press("Stop")
    expect(chat.status).to_have_text("ready")
    assert model.server.client_has_left.wait(PATIENCE)
    chat.load()
    expect(chat.status).to_have_text("ready")
    expect(chat.answer).to_contain_text("Stopped.")
    expect(chat.answer.locator(".text")).to_have_text(re.compile("One$"))
    chat.send("And now?")
    chat.expect_answer("You wrote: And now?")
    texts = [message["content"] for message in model.last_asked]
    assert [texts[0], texts[2]] == ["Endlessly, please.", "And now?"]
    assert chat.messages.count() == 4
    chat.expect_same_after_reload()


def regenerates(chat: Chat, model: Model) -> None:
    """Replace an answer by another one: the last and an earlier one, before and after a reload."""
    chat.send("First")
    chat.expect_answer("You wrote: First")
    chat.send("Second")
    chat.expect_answer("You wrote: Second")
    for reload in (False, True):
        if reload:
            chat.load()
        before = chat.answer.locator(".text").inner_text()
        chat.press("Regenerate", chat.answer)
        expect(chat.answer.locator(".text")).not_to_have_text(before)  # or the old one could still be there
        chat.expect_answer("You wrote: Second")
        assert chat.messages.count() == 4
        assert [message["role"] for message in model.last_asked] == ["user", "assistant", "user"]
        chat.expect_same_after_reload()
    first = chat.page.locator("article[data-role=assistant]").first
    before = first.locator(".text").inner_text()
    chat.press("Regenerate", first)
    expect(chat.messages).to_have_count(2)
    expect(first.locator(".text")).not_to_have_text(before)
    chat.expect_answer("You wrote: First")
    assert [message["content"] for message in model.last_asked] == ["First"]
    chat.expect_same_after_reload()


def edits(chat: Chat, model: Model) -> None:
    """Edit a message: the model receives only the new text. Repeatedly, and also after a reload."""
    for text in ("First", "Second"):
        chat.send(text)
        chat.expect_answer(f"You wrote: {text}")
    for text in ("Third", "Fourth"):
        chat.press("Edit", chat.question(0))
        expect(chat.page.get_by_label("Message")).not_to_be_empty()
        chat.send(text)
        expect(chat.messages).to_have_count(2)
        chat.expect_answer(f"You wrote: {text}")
        assert [message["content"] for message in model.last_asked] == [text]
        chat.expect_same_after_reload()
    chat.send("Fifth")
    chat.expect_answer("You wrote: Fifth")
    assert [message["content"] for message in model.last_asked if message["role"] == "user"] == ["Fourth", "Fifth"]
    chat.expect_same_after_reload()


def resumes(chat: Chat, model: Model) -> None:
    """Reload the page during an answer: it shows what has arrived, once, and the rest as it arrives."""
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
    """Continue an answer after the network was lost; no second answer starts in the meantime, and none is lost."""
    chat.send("Slowly, please.")
    expect(chat.answer.locator(".text")).to_have_text(re.compile("One$"))
    chat.front.stop()
    expect(chat.status).to_have_text("error")
    chat.front.start()
    chat.press("Retry")
    expect(chat.alert).to_contain_text("Another answer is being generated in this conversation")
    chat.load()
    expect(chat.status).to_have_text("streaming")
    model.go_on.set()
    chat.expect_answer(r"^\d+\. One two.$")
    assert chat.messages.count() == 2
    chat.expect_same_after_reload()


def recovers(chat: Chat, model: Model) -> None:
    """After an error, retry or send something else. The provider's words are not shown."""
    model.is_failing = True
    chat.send("First")
    expect(chat.alert).to_contain_text("The model gave no answer.")
    assert "secret" not in chat.page.content()
    asked = len(model.server.requests)
    chat.press("Retry")
    assert wait_until(lambda: len(model.server.requests) > asked)  # until then, the error could still be the first one
    expect(chat.status).to_have_text("error")
    model.is_failing = False
    chat.press("Retry")
    chat.expect_answer("You wrote: First")
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
    chat.expect_answer("You wrote: Third")
    chat.expect_same_after_reload()


def takes_files(chat: Chat, model: Model) -> None:
    """Send an image to the model and back; refuse a file of another type with a reason."""
    files = chat.page.get_by_label("Files")
    files.set_input_files({"name": "ä.png", "mimeType": "image/png", "buffer": PNG})
    chat.send("What is this?")
    chat.expect_answer("You wrote: a file What is this?")
    image, text = model.last_asked[-1]["content"]
    assert image["image_url"]["url"] == f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    assert text["text"] == "What is this?"
    expect(chat.question(0).get_by_alt_text("ä.png")).to_be_visible()
    chat.expect_same_after_reload()
    expect(chat.question(0).get_by_alt_text("ä.png")).to_have_attribute("src", re.compile("^blob:"))
    expect(chat.question(0).get_by_alt_text("ä.png")).to_be_visible()
    files.set_input_files({"name": "a.csv", "mimeType": "text/csv", "buffer": b"1;2"})
    chat.send("What is its sum?")
    chat.expect_answer('You wrote: <file name="a.csv">')
    expect(chat.question(1).get_by_role("link", name="a.csv")).to_be_visible()
    chat.expect_same_after_reload()
    files.set_input_files({"name": "a.html", "mimeType": "text/html", "buffer": b"<b>"})
    chat.send("And this?")
    expect(chat.alert).to_contain_text("mediaType: it must be a type of image, audio or video, or application/pdf")
    chat.load()
    assert chat.messages.count() == 4


SCENES: list[Callable[[Chat, Model], None]] = [
    streams,
    thinks,
    uses_tools,
    asks_for_approval,
    runs_tools_in_the_browser,
    stops,
    regenerates,
    edits,
    resumes,
    reconnects,
    recovers,
    takes_files,
]

SETTINGS = {"DJANGO_SETTINGS_MODULE": "tests.acceptance.chat.client.site_settings"}

CHAT_IDS: list[Callable[[], str]] = [
    lambda: uuid4().hex[:16],  # as the AI SDK writes them
    lambda: f"../a chat/{uuid4()}?#ä",  # characters that need escaping
]


class Server:
    """A process that listens on a port while a block runs."""

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
        """Start the process, and wait until it listens."""
        self.process = subprocess.Popen(self.command, cwd=self.folder, env={**os.environ, **self.environment})
        while self.process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.1)
        raise RuntimeError(f"{self.command} has ended with {self.process.returncode}.")

    def stop(self) -> None:
        """Stop the process."""
        self.process.kill()
        self.process.wait()


def prepare(*permissions: str) -> str:
    """Create the tables and a user with *permissions*, and return the user's token."""
    django.setup()
    call_command("migrate", verbosity=0)
    from django.contrib.auth.models import Permission, User  # needs django.setup()
    from rest_framework.authtoken.models import Token

    user = User.objects.create_user(f"stranger-{uuid4().hex}")
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    return Token.objects.create(user=user).key


def play(context: BrowserContext, front: Server, model: Model, major: int) -> None:
    """
    Play all scenes that this version of the SDK can, each in its own chat, once with all messages in each request and
    once with the last one only.
    """
    chat_ids = cycle(CHAT_IDS)
    for sends in ("", "&last"):
        for scene in SCENES:
            if scene is asks_for_approval and major < 6:
                continue
            # An image fits only the memory that the example gives to chats whose id is a UUID.
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
    """Run the scenes; see the module's docstring."""
    token = prepare()
    major = int(json.loads((folder / "node_modules/ai/package.json").read_text())["version"].split(".")[0])
    uvicorn = [sys.executable, "-m", "uvicorn", "example_project.asgi:application", "--log-level", "warning"]
    vite = ["node", "node_modules/vite/bin/vite.js", "preview", "--host", "127.0.0.1", "--logLevel", "error"]
    with (
        serving() as model_server,
        Server(uvicorn, ROOT, OPENAI_BASE_URL=model_server.url, OPENAI_API_KEY="key", **SETTINGS) as site,
        Server(vite, folder, BASE_URL=f"http://127.0.0.1:{site.port}") as front,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=120_000)
        context = browser.new_context(timezone_id="Europe/Oslo")
        context.set_default_timeout(120_000)
        context.add_init_script(COUNT_RESUMPTIONS)
        context.add_init_script(f"localStorage.setItem('token', '{token}')")
        play(context, front, Model(model_server), major)
        browser.close()


if __name__ == "__main__":
    expect.set_options(timeout=120_000)
    main(Path(sys.argv[1]).resolve())
