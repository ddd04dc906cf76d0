"""Follow the page "Get started" literally; needs neither Django nor pytest, so that ``.ci/get_started`` can use it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html.parser import HTMLParser
from http.client import HTTPConnection
from http.cookies import SimpleCookie
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

from tests.ports import free_port

PAGE = Path(__file__).parents[3] / "docs" / "get-started.md"
INSTALLING = re.compile(r"python -m (venv|pip) |\. \.venv/")
SERVING = re.compile(r"python -m uvicorn .*--port 8000")
SIGN_IN = re.compile(r"PASSWORD=(?P<password>\S+) .*--username (?P<username>\S+)")
_BLOCK = re.compile(r"(?:<!-- (file|append|instead): (\S+) -->\n)?^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CHAT = "0192f5a0-7d3e-7c21-9b1a-5d2f4e0b7a11"
_COMMAND_SECONDS = 300
_ANSWER_SECONDS = 300


class Step(NamedTuple):
    """A step of the page: *what* is "run" with a command as *text*, or "file", "append" or "instead" with a *path*."""

    what: str
    text: str
    path: str = ""


def steps(page: str) -> Iterator[Step]:
    """Yield the steps of *page*, in order; ValueError for a block that names no file."""
    for what, path, language, text in _BLOCK.findall(page):
        if language == "console":
            yield from (Step("run", line.removeprefix("$ ")) for line in text.splitlines() if line.startswith("$ "))
        elif what:
            yield Step(what, text, path)
        else:
            raise ValueError(f"No comment names the file of the block that begins with {text[:60]!r}.")


class Follower:
    """
    Runs commands and writes files, as a person does in one terminal: a command can change the folder and the variables.

    *folder* is where the terminal opens. With *installs* false, commands that match ``INSTALLING`` are collected in
    ``left_out`` instead.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], *, installs: bool) -> None:
        self.folder = folder
        self.environment = dict(environment)
        self.installs = installs
        self.left_out: list[str] = []
        self.server = ""
        self._state = folder / "state"

    def follow(self, page: str) -> None:
        """Take every step of *page* except starting the server, whose command is kept as ``server``."""
        for step in steps(page):
            if step.what == "run":
                self._command(step.text)
            elif step.what != "instead":
                self.write(step)

    def write(self, step: Step) -> None:
        """Write or append to the file of *step*."""
        path = self.folder / step.path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if step.what == "append" else "w") as file:
            file.write(f"\n{step.text}" if step.what == "append" else step.text)

    def _command(self, command: str) -> None:
        if INSTALLING.match(command) and not self.installs:
            self.left_out.append(command)
        elif SERVING.match(command):
            self.server = command
        else:
            self.run(command)

    def run(self, command: str) -> str:
        """Run *command*, and return what it printed; RuntimeError if it fails."""
        keep = f'{{ pwd && env -0; }} >"{self._state}"'
        done = subprocess.run(
            ["bash", "-c", f"{command} && {keep}"],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_COMMAND_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{command} failed with {done.returncode}:\n{done.stdout[-4000:]}")
        folder, _, variables = self._state.read_text().partition("\n")
        self.folder = Path(folder)
        self.environment = dict(each.split("=", 1) for each in variables.split("\0") if each)
        return done.stdout

    @contextmanager
    def serving(self) -> Iterator[Browser]:
        """Run the server on a free port, and yield a browser for it; the server is killed in the end."""
        port = free_port()
        log_path = self.folder / "server.log"
        with log_path.open("w") as log:
            server = subprocess.Popen(
                ["bash", "-c", f"exec {self.server.replace('--port 8000', f'--port {port}')}"],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            _wait_for(port, server, log_path)
            yield Browser(port)
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


class Response(NamedTuple):
    """A response: its status, the address to which it redirects, and its body in the pieces in which it was sent."""

    status: int
    location: str
    pieces: list[str]

    @property
    def text(self) -> str:
        """The whole body."""
        return "".join(self.pieces)


class Browser:
    """A client with cookies, which reads one chunk at a time."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.cookies: dict[str, str] = {}

    def get(self, path: str) -> Response:
        """Get *path*."""
        return self._request("GET", path)

    def submit(self, page: str, action: str, **fields: str) -> Response:
        """Send *fields*, and the hidden fields of the form on *page*, to *action*."""
        hidden = _HiddenFields(self.get(page).text).found
        return self._request("POST", action, urlencode({**hidden, **fields}))

    def post(self, path: str, token: str, body: object) -> Response:
        """Post *body* as JSON to *path*, with a CSRF *token*."""
        return self._request("POST", path, json.dumps(body), "application/json", {"X-CSRFToken": token})

    def _request(
        self,
        method: str,
        path: str,
        body: str | None = None,
        content_type: str = "application/x-www-form-urlencoded",
        more: Mapping[str, str] | None = None,
    ) -> Response:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=_ANSWER_SECONDS)
        headers = {"Cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items()), **(more or {})}
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            for header in response.headers.get_all("Set-Cookie", []):
                self.cookies.update({name: cookie.value for name, cookie in SimpleCookie(header).items()})
            pieces = []
            while piece := response.read1():  # one chunk at most, in the sense of HTTP
                pieces.append(piece)
        finally:
            connection.close()
        if (
            response.headers.get_content_type() != "application/json"
            and response.headers.get_content_maintype() != "text"
        ):
            pieces = []
        return Response(response.status, response.headers.get("Location", ""), [each.decode() for each in pieces])


class _HiddenFields(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: dict[str, str] = {}
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag == "input" and attributes.get("type") == "hidden":
            self.found[attributes["name"] or ""] = attributes.get("value") or ""


class Conversation(NamedTuple):
    """What a user of the finished site gets to see."""

    refused: int
    first: Response
    second: Response
    reloaded: Response
    script: Response
    admin_list: Response
    admin_page: Response
    style_sheet: Response


def converse(page: str, browser: Browser) -> Conversation:
    """Sign in with the user of *page*, send two messages, reload, and look at the admin."""
    found = SIGN_IN.search(page)
    if found is None:
        raise ValueError("No command of the page creates a user.")
    sign_in = browser.get("/").location
    welcome = browser.submit(sign_in, sign_in, **found.groupdict())
    if welcome.location != "/":
        raise RuntimeError(f"Signing in led to {welcome.location!r}, with the status {welcome.status}.")
    page_of_chat = browser.get("/").text
    site = json.loads(re.findall(r'<script id="site" type="application/json">(.+?)</script>', page_of_chat)[0])
    [address, token] = site["addresses"]["chat"]["post"], site["csrf"]["token"]
    refused = browser.post(address, "x" * 64, _question("hi")).status
    first = browser.post(address, token, _question("My cat is called <b>Minka</b>."))
    second = browser.post(address, token, _question("What is my cat called?"))
    script = browser.get(re.findall(r'<script type="module" src="(.+?)"', page_of_chat)[0])
    admin_list = browser.get("/admin/chatmemory/conversation/")
    link = re.search(r'href="(/admin/chatmemory/conversation/\d+/change/)', admin_list.text)
    admin_page = browser.get(link[1]) if link else Response(404, "", [])
    style_sheet = browser.get("/static/admin/css/base.css")
    reloaded = browser.get(f"{address}/{CHAT}/messages")
    return Conversation(refused, first, second, reloaded, script, admin_list, admin_page, style_sheet)


def _question(text: str) -> object:
    return {"id": CHAT, "message": {"role": "user", "parts": [{"type": "text", "text": text}]}}


def _spoken(stream: Response) -> str:
    """Return the text in the server-sent events of *stream*."""
    return "".join(json.loads(f'"{each}"') for each in re.findall(r'"delta":"((?:[^"\\\\]|\\\\.)*)"', stream.text))


def check(seen: Conversation) -> None:
    """Check what the page promises; AssertionError if it does not hold."""
    answer = "I was sent: My cat is called <b>Minka</b>."
    _expect(seen.refused == 403, "a POST without a CSRF token is refused", seen.refused)
    _expect((seen.first.status, _spoken(seen.first).strip()) == (200, answer), "the model answers", seen.first)
    _expect(len(seen.first.pieces) > 3, "an answer arrives word by word", seen.first.pieces)
    _expect("What is my cat called?" in _spoken(seen.second), "the second question is answered", seen.second)
    _expect("Minka" in _spoken(seen.second), "the second answer knows the first message", seen.second)
    _expect(seen.reloaded.text.count("Minka") >= 3, "the conversation is there after a reload", seen.reloaded)
    _expect((seen.script.status, "import" in seen.script.text) == (200, True), "the page has its scripts", seen.script)
    _expect(CHAT in seen.admin_list.text, "the admin lists the conversation", seen.admin_list)
    _expect(seen.style_sheet.status == 200, "the admin has its style sheets", seen.style_sheet.status)
    _expect("Minka" in seen.admin_page.text, "the admin shows its messages", seen.admin_page.status)


def _expect(holds: bool, promise: str, seen: object) -> None:
    if not holds:
        raise AssertionError(f"The page promises that {promise}, but: {seen!r}")


def _wait_for(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if server.poll() is not None:
                break
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"The server did not start:\n{log.read_text()[-4000:]}")
