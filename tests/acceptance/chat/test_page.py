"""The page of the example site in a real browser, on a server that streams.

With ``SCREENSHOTS=folder`` in the environment, its screenshots are saved there: look at them.
"""

import base64
import json
import re
from itertools import pairwise

import pytest

from tests.acceptance.browser import FORMS, LAPTOP, PATIENCE, PHONE, Remote, chromium, needs_browser, overflow, shoot
from tests.acceptance.chat.line import line_to
from tests.acceptance.chat.live_site import manage, served
from tests.faces.chat.server import serving

__all__ = ["chromium"]  # a fixture

pytestmark = [needs_browser, pytest.mark.slow]

ROOT = "document.querySelector('chat-memory').shadowRoot"
"""What of the page is the chat's."""
ROOT_OR_PAGE = "document.querySelector('chat-memory')?.shadowRoot ?? document"

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAQAAAAECAIAAAAmkwkpAAAAEElEQVR4nGP4z8AARwzEcQCukw/x0F8jngAAAABJRU5ErkJggg=="
)
NAMED = ("My name is Ada, and I live in Bergen.", "Noted: your name is Ada; you live in Bergen.")
HERE = {"domain": "127.0.0.1", "path": "/"}
SIGN_IN = """
import json
from django.contrib.auth.models import User
from django.test import Client

def sessions(users):
    for user in users:
        client = Client()
        client.force_login(user)
        yield client.cookies["sessionid"].value

User.objects.create_user("ann", password="ann")
kinds = {
    "demo": [User.objects.get(username="demo")],
    "staff": [User.objects.create_user(f"staff-{n}", is_staff=True, is_superuser=True) for n in range(200)],
    "visitor": [User.objects.create_user(f"visitor-{n}") for n in range(20)],
}
print(json.dumps({kind: list(sessions(users)) for kind, users in kinds.items()}))
"""
HOLD_STREAM = """
    // The page has loaded the history when it asks for an answer in progress; it waits then.
    const [send, wait] = [window.fetch, new Promise(done => { window.goOn = done; })];
    window.fetch = async (url, ...rest) => {
        if (url.split("?")[0].endsWith("/stream")) { window.isHeld = true; await wait; }
        return send(url, ...rest);
    };
"""
HOLD_TABS = """
    // What other tabs tell waits until hear() is called, but not what the site streams.
    const send = window.fetch;
    window.fetch = async (url, ...rest) => {
        const response = await send(url, ...rest);
        window.isListening ||= url.split("?")[0].endsWith("/stream");
        return response;
    };
    const listen = BroadcastChannel.prototype.addEventListener;
    const held = new Promise(done => { window.hear = done; });
    BroadcastChannel.prototype.addEventListener = function (type, hear) {
        listen.call(this, type, event => held.then(() => hear(event)));
    };
"""

EVICTING = ("What can you do?", "Count to 20", "Where do I live?", "What is 2 + 3?")
"""Messages that fill the memory, so that earlier ones are evicted."""

REFUSED = re.compile(r"responded with a status of (401|409|413|429|503)|net::ERR_")
"""What the browser logs where a test has a request refused. Nothing asks for what does not exist: that is a 404."""

LARGE_IMAGE = """async () => {
    // Pasted like a screenshot.
    const canvas = new OffscreenCanvas(1200, 900);
    canvas.getContext("2d").fillRect(0, 0, 600, 900);
    const data = new DataTransfer();
    data.items.add(new File([await canvas.convertToBlob()], "pasted.png", {type: "image/png"}));
    const pasted = new ClipboardEvent("paste", {clipboardData: data, cancelable: true});
    document.querySelector("chat-memory").shadowRoot.getElementById("say").dispatchEvent(pasted);
}"""

BY_REST = """async messages => {
    // A conversation, made by another program of the user.
    const headers = {"Content-Type": "application/json", "X-CSRFToken": document.cookie.match(/csrftoken=([^;]+)/)[1]};
    const post = (path, body) => fetch(path, {method: "POST", headers, body: JSON.stringify(body)});
    const {memory_id: id} = await (await post("/api/conversations/", {})).json();
    while (messages.length) {
        const some = messages.splice(0, 100).map(message => ({message}));
        await post(`/api/conversations/${id}/messages/`, {messages: some});
    }
    return id;
}"""

CHANGE = """async ([id, body]) => {
    const headers = {"Content-Type": "application/json", "X-CSRFToken": document.cookie.match(/csrftoken=([^;]+)/)[1]};
    return (await fetch(`/api/conversations/${id}/`, {method: "PATCH", headers, body: JSON.stringify(body)})).status;
}"""

AT_REST = f"Promise.all(({ROOT_OR_PAGE}).getAnimations().map(each => each.finished.catch(() => null)))"
"""Resolves once all transitions have ended."""

HELD_MEMORY = """() => {
    // Hold requests for the memory back until release() is called.
    const [held, {fetch}] = [new Promise(resolve => { window.release = resolve; }), window];
    window.fetch = async (path, options) => {
        if (path.includes("/memory/")) await held;
        return fetch(path, options);
    };
}"""

WATCH = """() => {
    // The answer's text after each piece that arrived.
    const chat = document.querySelector("chat-memory").shadowRoot;
    window.seen = [];
    const look = () => {
        const live = chat.querySelector(".message.live .text");
        if (live && live.textContent !== window.seen.at(-1)) window.seen.push(live.textContent);
    };
    const all = {childList: true, subtree: true, characterData: true};
    new MutationObserver(look).observe(chat.getElementById("messages"), all);
}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder of a database with the demo's conversations, and with users for the tests."""
    folder = tmp_path_factory.mktemp("site")
    manage(folder, "demo", "--no-serve")
    return folder


@pytest.fixture(scope="module")
def site(folder):
    """Yield the address of the example site."""
    with served(folder) as address:
        yield address


@pytest.fixture(scope="module")
def sessions(folder):
    """Return the cookies of users who are signed in, by kind: the demo's one, and iterators over those of new users."""
    kinds = json.loads(manage(folder, "shell", "-v", "0", "-c", SIGN_IN))
    return {"demo": kinds["demo"][0], "staff": iter(kinds["staff"]), "visitor": iter(kinds["visitor"])}


@pytest.fixture
def session_of(sessions):
    """Return a function to the cookies of a kind of user; all but the demo's one are new for each test."""
    met = {"demo": sessions["demo"]}
    return lambda kind: [
        {"name": "sessionid", "value": met.get(kind) or met.setdefault(kind, next(sessions[kind])), **HERE}
    ]


@pytest.fixture
def open_page(chromium, site, session_of):
    """
    Return a function that opens the page; the test fails on errors, policy violations or requests to other hosts.

    What a test stores is its own user's. Tests with the user "demo" read the demo's conversations, and store nothing.
    """
    contexts, complaints = [], []

    def open_page(address="/", *, user="staff", theme="light", viewport=None, language="en-GB", over=site, **options):
        context = chromium.new_context(
            base_url=over, color_scheme=theme, viewport=viewport or LAPTOP, locale=language, **options
        )
        contexts.append(context)
        if user:
            context.add_cookies(session_of(user))
        context.set_default_timeout(PATIENCE)
        opened = context.new_page()
        opened.on("console", lambda message: complaints.append(f"{message.text} {message.location}"))
        opened.on("pageerror", lambda error: complaints.append(str(error)))
        opened.on("dialog", lambda dialog: complaints.append(dialog.message))
        opened.on("request", lambda request: None if request.url.startswith(over) else complaints.append(request.url))
        opened.goto(address)
        return opened

    yield open_page
    for context in contexts:
        context.close()
    expected = re.compile(rf"{REFUSED.pattern}|favicon\.ico")  # the admin has none
    assert [each for each in complaints if not expected.search(each)] == []


@pytest.fixture
def line(site):
    """Yield a line to the site that can be cut."""
    with line_to(site) as line:
        yield line


@pytest.fixture
def chat(open_page):
    """Return a function that opens a new chat, or the one at an address, and returns it as a ``Chat``."""
    return lambda address="/", **options: Chat(open_page(address, **options))


@pytest.fixture
def axe():
    """Return a function that returns axe's findings for a page."""
    base = pytest.importorskip("axe_playwright_python.base", reason="axe: pip install axe-playwright-python")

    def axe(opened):
        opened.evaluate(base.AXE_SCRIPT)  # through the debugger's protocol, to which no policy applies
        # Preloading would put inline styles into the chat's root, which the policy refuses.
        found = opened.evaluate("axe.run({resultTypes: ['violations'], preload: false})")["violations"]
        return [(rule["id"], node["html"]) for rule in found for node in rule["nodes"]]

    return axe


class Chat:
    """The page, as a person uses it."""

    def __init__(self, page):
        self.page = page
        page.wait_for_selector("#conversations :is(li, [data-part=empty]:not([hidden]))", state="attached")

    def say(self, *texts):
        """Send messages one after another, each once the previous one is answered."""
        for words in texts:
            self.begin(words)
            self.wait()

    def begin(self, words):
        """Send a message without waiting for the answer; the page is busy from that moment on."""
        self.page.fill("#say", words)
        self.page.press("#say", "Enter")

    def wait(self):
        """Wait until the last message is answered, and the page shows what is stored."""
        self.page.wait_for_selector("#messages[aria-busy=false]")

    def await_count_to(self, number):
        """Wait until an answer in progress has counted to *number*."""
        is_there = f"words => {ROOT}.querySelector('.live .text')?.textContent.includes(words)"
        self.page.wait_for_function(is_there, arg=f"{number},")

    def stop(self):
        """Stop the answer in progress: one that takes long, so that no pause of the machine outlasts it."""
        self.page.get_by_role("button", name="Stop").click()
        self.wait()

    def in_another_tab(self):
        """Open the conversation, which has an answer, in another tab, and return the page there."""
        other = self.page.context.new_page()
        other.goto(self.page.url)
        other.wait_for_selector(".message.assistant")
        return other

    @property
    def answers(self):
        """The assistant's answers, as shown."""
        return [each.inner_text() for each in self.page.locator(".message.assistant .bubble").all()]

    @property
    def questions(self):
        return [each.inner_text() for each in self.page.locator(".message.user .bubble").all()]

    def message(self, words):
        """Return the user's message with this text."""
        return self.page.locator(".message.user", has_text=words).first

    def press(self, message, name):
        """Press the button of *message* with the label *name*."""
        message.hover()
        message.get_by_role("button", name=name).click()

    @property
    def table(self):
        """The memory panel: text and state of each message."""
        rows = self.page.locator("#memory tbody tr").all()
        return [(row.locator(".words").inner_text(), row.locator(".fate").inner_text()) for row in rows]

    @property
    def tokens(self):
        """The number of tokens in the memory, and its limit."""
        words = self.page.locator("[data-part=used]").inner_text()
        return tuple(map(int, re.findall(r"\d+", words.replace(",", ""))))

    def is_faded(self, words):
        return "out" in self.message(words).get_attribute("class").split()


def hold(page, address):
    """Keep requests of *page* for *address*, and return the list that they come into."""
    held = []
    page.route(address, lambda route: held.append(route))
    return held


def await_held(page, held):
    """Wait until a request is in *held*."""
    while not held:
        page.wait_for_timeout(20)  # lets the route be called


def release(page, held):
    """Let the requests in *held* go, which a route of *page* has kept."""
    for each in held:
        Remote(page._thread, each).continue_()


def sign_in(page, name, password=None):
    page.goto("/")
    page.fill("#id_username", name)
    page.fill("#id_password", password or name)
    page.click("button[type=submit]")
    page.wait_for_selector("#say, [role=alert]:visible")


class TestLoading:
    def begin_to_load(self, page, draft):
        """Load the page again, with a *draft* in it, up to a script that is held; return where that is."""
        page.fill("#say", draft)
        held = hold(page, "**/composer*.js")
        page.goto(page.url, wait_until="commit")
        page.wait_for_selector("#composer button[type=submit]:disabled")
        page.focus("#say")
        return held

    def test_what_is_typed_while_the_scripts_load_stays_and_is_sent_by_the_next_enter(self, chat):
        talk = chat()
        talk.say("Hello")
        page, address = talk.page, talk.page.url
        held = self.begin_to_load(page, "A draft")

        page.keyboard.type("What can you do?")
        page.keyboard.press("Enter")
        page.wait_for_function(f"() => {ROOT}.getElementById('say').value.endsWith('?\\n')")
        page.locator("[data-part=send]").dispatch_event("click")
        assert page.url == address
        await_held(page, held)
        release(page, held)

        page.wait_for_selector("#composer button[type=submit]:enabled")
        assert page.locator("#say").input_value() == "A draft\n\nWhat can you do?"
        page.unroute("**/composer*.js")
        page.focus("#say")
        page.keyboard.press("Enter")
        page.wait_for_function(f"() => {ROOT}.querySelectorAll('.message.assistant:not(.live)').length === 2")
        talk.wait()
        assert talk.questions == ["Hello", "A draft\n\nWhat can you do?"]
        assert (len(talk.answers), page.locator("#say").input_value()) == (2, "")

    def test_a_word_that_is_half_typed_while_the_scripts_load_goes_on_where_it_was(self, chat):
        talk = chat()
        talk.say("Hello")
        page = talk.page
        held = self.begin_to_load(page, "The draft")

        page.keyboard.type("The ")  # which the draft has, too; and ends with a space
        await_held(page, held)
        release(page, held)
        page.wait_for_selector("#composer button[type=submit]:enabled")
        page.keyboard.type("end")

        assert page.locator("#say").input_value() == "The draft\n\nThe end"

    def test_what_is_sent_before_the_conversation_has_loaded_belongs_to_it_and_is_answered_once(self, chat):
        talk = chat()
        talk.say("Hello")
        page, address = talk.page, talk.page.url
        asked = f"**/api/conversations/?memory_id={address.partition('chat=')[2]}"
        held = hold(page, asked)
        page.goto(address, wait_until="commit")
        page.wait_for_selector("#composer button[type=submit]:enabled")
        await_held(page, held)

        talk.begin("Count to 20")
        release(page, held)
        page.unroute(asked)  # this lets go what was held since
        page.wait_for_function(f"() => {ROOT}.querySelectorAll('.message.assistant:not(.live)').length === 2")
        talk.wait()

        assert page.url == address
        assert talk.questions == ["Hello", "Count to 20"]
        assert len(talk.answers) == 2


class TestSignIn:
    def test_the_demo_users_credentials_are_shown_and_work(self, open_page):
        page = open_page("/?chat=demo-parcel", user=None)
        shoot(page, "sign-in")
        assert "name and password are both demo" in page.locator(".offer").inner_text()

        page.fill("#id_username", "demo")
        page.fill("#id_password", "demo")
        page.press("#id_password", "Enter")

        page.wait_for_url("**/?chat=demo-parcel")
        page.wait_for_selector(".message.assistant")

    def test_a_wrong_password_shows_an_error(self, open_page):
        page = open_page(user=None)

        sign_in(page, "demo", "Demo")

        assert "Please enter a correct username and password" in page.locator("[role=alert]").inner_text()
        assert page.locator("#id_username").input_value() == "demo"

    def test_log_out_ends_the_session(self, open_page):
        page = open_page(user=None)
        sign_in(page, "ann")

        page.get_by_role("button", name="Sign out").click()
        page.wait_for_url("**/sign-in/")
        page.goto("/")

        assert "/sign-in/" in page.url


class TestAnswers:
    def test_an_answer_appears_piece_by_piece(self, chat):
        talk = chat()
        talk.page.evaluate(WATCH)

        talk.begin("Count to 900")
        talk.await_count_to(40)
        shoot(talk.page, "streams")
        talk.stop()

        seen = talk.page.evaluate("window.seen")
        assert len(seen) > 3  # more come at once if the machine pauses
        assert all(len(later) > len(earlier) for earlier, later in pairwise(seen))
        assert all(each.startswith(seen[0]) for each in seen)
        assert talk.answers[0].startswith("1, 2, 3, ")

    def test_the_question_and_the_chats_address_appear_at_once(self, chat):
        talk = chat()

        talk.begin("Count to 20")

        assert talk.questions == ["Count to 20"]
        assert re.search(r"\?chat=[0-9a-f-]{36}$", talk.page.evaluate("location.href"))
        talk.wait()

    def test_tool_calls_and_results_are_shown_and_open_by_keyboard(self, chat):
        talk = chat()

        talk.say("What is the weather in Bergen and in Atlantis?")

        calls = talk.page.locator(".call")
        assert [each.get_attribute("data-state") for each in calls.all()] == ["done", "failed"]
        assert 'get_weather("Bergen")' in calls.nth(0).inner_text()
        assert "Atlantis" in calls.nth(1).locator(".outcome").inner_text()
        calls.nth(0).locator("summary").press("Enter")
        assert '{"city": "Bergen"}' in calls.nth(0).locator("pre").first.inner_text()

    def test_reasoning_is_collapsed(self, chat):
        talk = chat()

        talk.say("Think aloud: what can you do?")

        assert talk.page.locator(".reasoning .text").is_hidden()
        talk.page.locator(".reasoning summary").click()
        assert "I search the 2 messages" in talk.page.locator(".reasoning .text").inner_text()

    def test_a_stopped_answer_stays_as_far_as_it_came(self, chat):
        talk = chat()
        talk.begin("Count to 900")
        talk.await_count_to(12)

        talk.stop()

        [answer] = talk.answers
        assert "12," in answer
        assert "900" not in answer
        assert "Stopped before the end." in talk.page.locator(".message.assistant .foot").inner_text()
        talk.say("Hello")
        assert len(talk.answers) == 2

    def test_a_reload_during_an_answer_shows_the_question_and_continues_the_answer(self, chat):
        talk = chat()
        talk.begin("Count to 900")
        talk.await_count_to(15)

        talk.page.reload()
        talk.page.wait_for_selector(".message.live .text")

        assert talk.questions == ["Count to 900"]
        words = talk.page.locator(".live .text").inner_text()
        assert words.startswith("1, 2, 3")
        talk.await_count_to(words.count(",") + 10)
        talk.stop()
        assert talk.answers[0].startswith("1, 2, 3")

    def test_an_answer_continues_while_the_user_views_another_conversation(self, chat):
        talk = chat()
        talk.say("My cat is called Tom")
        talk.page.get_by_role("button", name="New chat", exact=True).click()
        talk.begin("Count to 60")
        address = talk.page.evaluate("location.href")
        talk.page.locator("#conversations [aria-current]", has_text="Count to 60").wait_for()  # the list is the new one

        talk.page.get_by_role("link", name="My cat is called Tom").first.click()
        talk.page.wait_for_selector(".message.assistant >> text=Tom")
        talk.wait()
        assert talk.page.get_by_role("button", name="Send", exact=True).is_visible()
        talk.page.goto(address)
        talk.page.wait_for_selector(".message.assistant")
        talk.wait()

        assert "59, 60." in talk.answers[0]

    def test_a_failed_answer_shows_an_error_and_can_be_retried(self, chat):
        talk = chat()

        talk.say("Please fail")

        assert talk.page.locator("#problem").inner_text() == "The model gave no answer. Try again."
        assert "There is no answer." in talk.message("Please fail").inner_text()
        shoot(talk.page, "failed")
        talk.message("Please fail").get_by_role("button", name="Try again").click()
        talk.wait()
        assert talk.questions == ["Please fail"]
        talk.say("Hello")
        assert talk.page.locator("#problem").is_hidden()
        assert len(talk.answers) == 1


class TestConnection:
    def test_a_chat_goes_on_through_a_connection_that_comes_and_goes(self, chat, line):
        talk = chat(over=line.address)
        page, context = talk.page, talk.page.context
        problem, unsent = page.locator("#problem"), page.locator(".message.unsent")

        # What is written without a connection stays, also through a reload, and is sent later.
        context.set_offline(True)
        talk.begin("Count to 900")
        unsent.wait_for()
        shoot(page, "unsent")
        assert problem.inner_text() == "The site cannot be reached."
        context.set_offline(False)
        problem.wait_for(state="hidden")
        page.reload()
        unsent.get_by_text("Count to 900").wait_for()
        unsent.get_by_role("button", name="Try again").click()

        # An answer goes on after the connection was lost, and a draft stays where it was written.
        talk.await_count_to(12)
        line.cut()
        page.locator("#status", has_text="The connection is lost").wait_for()
        before = page.locator(".live .text").inner_text().count(",")
        shoot(page, "lost")
        page.fill("#say", "A draft")
        page.press("#say", "Enter")
        page.locator("#status", has_text="What you wrote stays here").wait_for()
        line.mend()
        talk.await_count_to(before + 10)
        talk.stop()
        assert (talk.questions, len(talk.answers)) == (["Count to 900"], 1)
        page.get_by_role("button", name="New chat", exact=True).click()
        assert page.locator("#say").input_value() == ""
        page.go_back()
        page.wait_for_selector(".message.assistant")
        page.reload()
        page.wait_for_selector(".message.assistant")
        assert page.locator("#say").input_value() == "A draft"

        # The session ends, as by signing out in another tab, and begins again.
        session = [each for each in context.cookies() if each["name"] == "sessionid"]
        context.clear_cookies(name="sessionid")
        page.press("#say", "Enter")
        problem.get_by_role("link", name="Sign in").wait_for()
        shoot(page, "signed-out")
        talk.wait()  # until then, no other is sent
        context.add_cookies(session)
        unsent.get_by_role("button", name="Try again").click()
        page.wait_for_function(f"() => {ROOT}.querySelectorAll('.message.assistant:not(.live)').length === 2")
        talk.wait()

        # The site has the message, and its response is lost: it is not sent twice.
        def lose(route):
            route.fetch()
            route.abort("connectionreset")

        page.route("**/api/chat", lose)
        talk.begin("Hello")
        page.wait_for_function(f"() => {ROOT}.querySelectorAll('.message.assistant:not(.live)').length === 3")
        talk.wait()
        assert problem.is_hidden()

        # The server is down, and the message comes back to be changed.
        page.unroute("**/api/chat")
        down = {"status": 503, "body": "Out of order.", "content_type": "text/plain"}
        page.route("**/api/chat", lambda route: route.fulfill(**down))
        talk.begin("Good morning")
        unsent.wait_for()
        talk.wait()
        assert problem.inner_text() == "Out of order."
        page.unroute("**/api/chat")
        unsent.get_by_role("button", name="Edit").click()
        assert page.locator("#say").input_value() == "Good morning"
        assert unsent.count() == 0

        # What is too long is not sent, and stays.
        page.fill("#say", "x" * 100_001)
        page.press("#say", "Enter")
        assert "100,001 characters, and at most 100,000" in problem.inner_text()
        assert page.evaluate(f"{ROOT}.getElementById('say').value.length") == 100_001
        talk.say("Who am I?")
        assert talk.questions == ["Count to 900", "A draft", "Hello", "Who am I?"]
        assert len(talk.answers) == 4

    def test_another_tab_shows_what_this_one_asks_and_that_it_is_being_answered(self, chat):
        talk = chat()
        talk.say("Hello")
        other = talk.in_another_tab()

        talk.begin("Count to 900")
        other.locator("#status", has_text="asked in another tab").wait_for()
        assert [each.inner_text() for each in other.locator(".message.user .bubble").all()] == ["Hello", "Count to 900"]
        shoot(other, "other-tab")
        talk.await_count_to(12)
        talk.stop()

        other.wait_for_selector("#messages[aria-busy=false]")
        assert "11, 12," in other.locator(".message.assistant").last.inner_text()
        assert other.locator("#status").is_hidden()

    def test_an_answer_in_another_tab_is_shown_whose_question_the_site_has_streamed_first(self, chat):
        talk = chat()
        talk.say("Hello")
        other = talk.page.context.new_page()
        other.add_init_script(HOLD_TABS)
        other.goto(talk.page.url)
        other.wait_for_function("() => window.isListening")

        talk.begin("Count to 900")
        other.wait_for_selector(".message.user >> text=Count to 900")
        other.evaluate("window.hear()")

        other.locator("#status", has_text="asked in another tab").wait_for()
        other.wait_for_selector(".message.live")
        talk.stop()

    def test_a_tab_knows_that_another_one_has_erased_its_conversation_and_keeps_what_is_typed(self, chat):
        talk = chat()
        talk.say("Hello")
        other = talk.in_another_tab()
        other.fill("#say", "A draft")

        talk.page.get_by_role("button", name="Erase conversation").first.click()
        talk.page.locator("#confirm-erase").get_by_role("button", name="Erase conversation").click()

        other.wait_for_selector("#problem:visible >> text=This conversation is not there")
        assert other.locator(".message").count() == 0
        assert other.input_value("#say") == "A draft"
        assert "?" not in other.url

    def test_a_question_is_shown_that_another_tab_asks_while_the_page_loads(self, chat):
        talk = chat()
        talk.say("Hello")
        other = talk.page.context.new_page()
        other.add_init_script(HOLD_STREAM)
        other.goto(talk.page.url)
        other.wait_for_function("() => window.isHeld")
        assert other.locator(".message.assistant").count() == 1

        talk.begin("Count to 900")
        talk.page.locator(".message.live").wait_for()
        other.evaluate("window.goOn()")

        other.locator(".message.live").wait_for()
        assert [each.inner_text() for each in other.locator(".message.user .bubble").all()] == ["Hello", "Count to 900"]
        talk.stop()


class TestApprovals:
    def test_a_call_waits_until_it_is_approved_by_keyboard_also_after_a_reload(self, chat):
        talk = chat()
        talk.say("Hello", 'Call this chat "<b>Fjords</b>"')
        call = talk.page.locator(".call")
        assert call.get_attribute("data-state") == "waiting"
        assert '{"title": "<b>Fjords</b>"}' in call.locator("pre").inner_text()
        words = call.locator(".decision").inner_text()
        assert words.startswith("The assistant wants to name this chat “<b>Fjords</b>”.")
        last = talk.page.locator(".message.assistant").last
        assert [each.get_attribute("aria-label") for each in last.locator(".foot button").all()] == []
        assert talk.page.get_by_text("call without result").locator("visible=true").count() == 0
        assert talk.table[-1][1] == "waiting"
        talk.page.locator("#heading", has_text="Hello").wait_for()

        talk.page.reload()
        call.get_by_text("The assistant wants to name this chat").wait_for()
        call.get_by_role("button", name="Approve: rename_conversation").press("Enter")

        talk.page.wait_for_selector(".call[data-state=done]")
        talk.wait()
        assert "This conversation is now called “<b>Fjords</b>”." in talk.answers[-1]
        talk.page.locator("#heading", has_text="<b>Fjords</b>").wait_for()
        assert talk.page.get_by_role("button", name="Approve").count() == 0

    def test_what_is_to_be_approved_has_no_characters_that_are_unseen(self, chat):
        talk = chat()
        talk.say('Call this chat "Fj\u202eords\ufeff"')
        call = talk.page.locator(".call")

        assert call.locator("summary code").inner_text() == 'rename_conversation("Fj⟦U+202E⟧ords⟦U+FEFF⟧")'
        assert not {"\u202e", "\ufeff"} & set(call.inner_text())

    def test_a_call_that_waits_for_somebody_else_has_no_buttons(self, chat):
        talk = chat()

        def as_others(route):  # as if the tool had an approve_by, a permission that the owner lacks
            response = route.fetch()
            messages = response.json()
            messages[-1]["metadata"]["waitsForOthers"] = [messages[-1]["parts"][-1]["toolCallId"]]
            route.fulfill(response=response, json=messages)

        talk.page.route("**/api/chat/*/messages", as_others)
        talk.page.route("**/approvals/", lambda route: route.fulfill(json={"results": []}))
        talk.say("Call this chat Fjords")
        talk.page.reload()

        call = talk.page.locator(".call[data-state=others]")
        call.wait_for()
        assert "waiting for somebody else" in call.inner_text()
        assert call.locator(".decision").inner_text() == "The assistant wants to name this chat “Fjords”."
        assert talk.page.get_by_role("button", name="Approve").count() == 0

    def test_a_denied_call_is_not_run(self, chat):
        talk = chat(language="de-DE")
        talk.say("Nenne diesen Chat Fjorde")
        assert "Der Assistent möchte dieses Gespräch „Fjorde“ nennen." in talk.page.locator(".decision").inner_text()

        talk.page.get_by_role("button", name="Ablehnen: rename_conversation").click()

        talk.page.wait_for_selector(".call[data-state=failed]")
        talk.wait()
        assert "not approved" in talk.answers[-1]
        talk.page.locator("#heading", has_text="Nenne diesen Chat Fjorde").wait_for()

    def test_a_page_that_waits_is_accessible_and_another_question_ends_it(self, chat, axe):
        talk = chat()
        talk.say("Call this chat Fjords")
        shoot(talk.page, "approval")
        assert axe(talk.page) == []

        talk.say("Never mind")

        assert talk.page.locator(".call").get_attribute("data-state") == "failed"
        assert talk.page.get_by_role("button", name="Approve").count() == 0


class TestRealModel:
    def test_two_environment_variables_select_a_real_model(self, chromium, tmp_path):
        manage(tmp_path, "demo", "--no-serve")
        with serving() as model:
            model.answer({"content": "I *am* a real model."})
            with served(tmp_path, OPENAI_BASE_URL=model.url, OPENAI_MODEL="some-model") as address:
                context = chromium.new_context(base_url=address)
                context.set_default_timeout(PATIENCE)
                page = context.new_page()
                sign_in(page, "demo")
                talk = Chat(page)
                assert page.locator("#chat header .note:visible").inner_text() == "some-model"

                talk.say("Are you real?")

                assert talk.answers == ["I am a real model."]
                assert talk.tokens[1] == 4000
                context.close()
        [request] = model.requests
        assert request.body["model"] == "some-model"
        assert [each["role"] for each in request.body["messages"]] == ["system", "user"]
        names = [each["function"]["name"] for each in request.body["tools"]]
        assert names == ["get_time", "get_weather", "rename_conversation", "search_conversations", "read_conversation"]


class TestEviction:
    def test_messages_fade_and_are_summarized_and_the_summary_knows_the_name(self, chat):
        talk = chat()
        talk.say(NAMED[0])
        assert not talk.is_faded(NAMED[0])
        assert talk.page.locator("[data-part=summary]").is_hidden()

        talk.say(*EVICTING)

        assert talk.is_faded(NAMED[0])
        assert "summarized" in talk.message(NAMED[0]).locator(".fate").inner_text()
        assert not talk.is_faded("What is 2 + 3?")
        assert "name = Ada; home = Bergen" in talk.page.locator("[data-part=summary] .text").inner_text()
        assert (NAMED[0], "summarized") in talk.table
        assert ("Summary", "summary") in talk.table
        assert talk.table[0][1] == "pinned"
        used, limit = talk.tokens
        assert used <= limit == 240
        assert "are sent, and a summary of earlier ones" in talk.page.locator("[data-part=count]").inner_text()
        talk.say("What is my name?")
        assert talk.answers[-1].startswith("Your name is Ada.")
        shoot(talk.page, "eviction")

    def test_an_evicted_message_is_unknown_until_summarized_but_found_by_a_search(self, chat):
        talk = chat()
        talk.say(NAMED[0], "Count to 60")
        assert "evicted" in talk.message(NAMED[0]).locator(".fate").inner_text()

        talk.say("What is my name?")
        assert talk.answers[-1].startswith("I do not know")
        talk.say("Search for my name is")

        assert "My name is Ada" in talk.page.locator(".call .outcome").last.inner_text()

    def test_a_message_larger_than_the_memory_is_refused_with_the_reason_and_stays_in_the_field(self, chat):
        talk = chat()
        talk.say(NAMED[0])
        before = talk.table

        talk.say("word " * 400)

        problem = talk.page.locator("#problem").inner_text()
        assert re.fullmatch(
            r"Your message is too long for this chat: with all that is sent along, it needs \d+ tokens, and 240 fit\. "
            r"Send a shorter one\.",
            problem,
        )
        assert talk.page.locator("#say").input_value() == "word " * 400
        assert talk.questions == [NAMED[0]]
        assert talk.table == before
        shoot(talk.page, "refused")
        talk.say("What is my name?")
        assert talk.answers[-1].startswith("Your name is Ada.")

    def test_the_gauge_is_proportional_to_the_messages_tokens(self, chat):
        talk = chat()
        talk.say(NAMED[0], "Hello")

        used, limit = talk.tokens
        whole = talk.page.locator(".gauge").bounding_box()["width"]
        pieces = talk.page.locator(".pieces i").evaluate_all("each => each.map(i => i.getBoundingClientRect().width)")
        costs = [int(each.inner_text()) for each in talk.page.locator("#memory tbody .cost").all()]

        assert sum(costs) == used
        assert pieces == pytest.approx([whole * cost / limit for cost in costs], abs=0.6)
        meter = talk.page.get_by_role("meter", name="How full the memory is")
        assert meter.get_attribute("aria-valuenow") == str(used)
        assert meter.get_attribute("aria-valuetext") == f"{used} of {limit} tokens"

    def test_the_slider_shows_what_a_smaller_window_would_keep(self, chat):
        talk = chat()
        talk.say(NAMED[0], "Hello")
        before = talk.table

        slide(talk.page, 100)
        talk.page.wait_for_selector(f".message.out >> text={NAMED[0]}")
        shoot(talk.page, "slider")

        assert (NAMED[0], "does not fit") in talk.table
        assert "would be sent" in talk.page.locator("[data-part=count]").inner_text()
        assert talk.tokens[0] <= talk.tokens[1] == 100
        talk.page.get_by_role("button", name="Reset").click()
        assert talk.table == before
        assert not talk.is_faded(NAMED[0])
        talk.page.reload()
        talk.page.wait_for_selector(".message.assistant")
        assert not talk.is_faded(NAMED[0])

    def test_the_slider_is_moved_by_keyboard(self, chat):
        talk = chat()
        talk.say(NAMED[0])

        talk.page.press("[data-part=slider]", "Home")

        talk.page.wait_for_selector(f".message.out >> text={NAMED[0]}")
        assert talk.table[0][1] == "pinned"

    def test_a_cleared_memory_is_empty_and_the_history_stays(self, chat):
        talk = chat()
        talk.say(NAMED[0])

        talk.page.get_by_role("button", name="Clear memory").click()
        talk.page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        assert not talk.is_faded(NAMED[0])
        talk.page.get_by_role("button", name="Clear memory").click()
        shoot(talk.page, "clear")
        talk.page.get_by_role("dialog").get_by_role("button", name="Clear memory").click()
        talk.page.wait_for_selector(f".message.out >> text={NAMED[0]}")
        talk.page.wait_for_selector("[data-part=clear]:disabled")  # the panel is loaded after the messages

        assert talk.tokens == (0, 240)
        assert {fate for _, fate in talk.table} == {"evicted"}
        talk.say("What is my name?")
        assert talk.answers[-1].startswith("I do not know")
        assert talk.questions == [NAMED[0], "What is my name?"]

    def test_a_pinned_message_stays_in_the_memory_is_marked_and_leaves_it_once_unpinned(self, chat):
        talk = chat()
        talk.say(NAMED[0])
        name = talk.message(NAMED[0])
        talk.press(name, "Pin the message")
        talk.page.get_by_role("button", name="Unpin the message").wait_for(state="attached")
        talk.say(*EVICTING)

        assert name.locator(".pinned").inner_text() == "pinned"
        assert not talk.is_faded(NAMED[0])
        assert dict(talk.table)[NAMED[0]] == "pinned"
        assert talk.page.locator("[data-part=system] .text").text_content().startswith("You are")
        german = chat(talk.page.url, language="de-DE")
        german.press(german.message(NAMED[0]), "Nachricht lösen")
        german.page.wait_for_selector(f".message.out >> text={NAMED[0]}")
        assert german.page.locator(".pinned").count() == 0
        german.message(NAMED[0]).get_by_role("button", name="Nachricht anheften").wait_for(state="attached")

    def test_an_erased_conversation_disappears(self, chat):
        talk = chat()
        talk.say("My dog is called Erasmus")
        address = talk.page.url

        talk.page.get_by_role("button", name="Erase conversation").click()
        talk.page.get_by_role("dialog").get_by_role("button", name="Erase conversation").click()
        talk.page.wait_for_selector("#welcome:visible")

        assert talk.questions == []
        talk.page.wait_for_function(f"() => !{ROOT}.getElementById('conversations').textContent.includes('Erasmus')")
        talk.page.goto(address)
        talk.page.wait_for_selector("#welcome:visible")


SOUND = b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(28)

BY_HAND = """async ([id, sequence, metadata]) => {
    // What a model's server has done to a message.
    const headers = {"Content-Type": "application/json", "X-CSRFToken": document.cookie.match(/csrftoken=([^;]+)/)[1]};
    const path = `/api/conversations/${id}/messages/${sequence}/`;
    return (await fetch(path, {method: "PATCH", headers, body: JSON.stringify({metadata})})).status;
}"""


class TestInWords:
    @pytest.mark.parametrize(
        ("language", "note", "button"),
        [
            ("en-GB", "The model did not accept this: it does not take the file.", "Send without the file"),
            (
                "de-DE",
                "Das Modell hat das nicht angenommen: Mit der Datei kann es nicht umgehen.",
                "Ohne die Datei senden",
            ),
        ],
    )
    def test_a_rejected_question_has_the_reason_and_is_sent_without_the_file(self, chat, axe, language, note, button):
        talk = chat(language=language)
        page = talk.page
        page.set_input_files("input[type=file]", [{"name": "a.wav", "mimeType": "audio/wav", "buffer": SOUND}])
        page.wait_for_selector("#composer .named")

        talk.say("Count to 3")

        question = page.locator(".message.user")
        assert note in question.locator(".foot").inner_text()
        assert page.locator("#problem").is_visible()
        assert axe(page) == []
        shoot(page, f"rejected-{language}")
        page.reload()
        question.get_by_role("button", name=button).press("Enter")
        page.wait_for_selector(".message.assistant:not(.live)")
        talk.wait()
        assert talk.answers[0].startswith("1, 2, 3.")
        assert talk.questions == ["Count to 3"]
        assert page.locator(".rejected").count() == 0
        assert page.locator("#problem").is_hidden()

    def test_a_rejected_question_stays_with_the_reason_and_the_chat_goes_on(self, chat):
        talk = chat()
        talk.say("Hello", "Count to 3")
        [memory_id] = re.findall(r"chat=([0-9a-f-]+)", talk.page.url)

        for reason, note in (
            ("content_filter", "its filter"),
            ("too_long", "too long"),
            ("invalid", "not accept this."),
        ):
            assert talk.page.evaluate(BY_HAND, [memory_id, 2, {"rejected": reason}]) == 200
            talk.page.reload()
            talk.page.locator(".rejected", has_text=note).wait_for()

        assert talk.message("Hello").get_by_role("button", name="Try again").count() == 0

    def test_an_answer_names_the_results_of_which_the_model_was_sent_the_beginning(self, chat, axe):
        talk = chat()
        for number in range(9):
            words = f"My bread number {number} " + "rose for a very long time, and was sour, dark and heavy. " * 9
            talk.page.evaluate(BY_REST, [{"role": "user", "content": words}])
        talk.say("What did I tell you about bread?")

        answer = talk.page.locator(".message.assistant").last
        note = answer.locator(".note", has_text="The model was sent only the beginning of long results")
        assert re.search(r": \d+ of \d+ tokens\.$", note.inner_text())
        assert axe(talk.page) == []
        shoot(talk.page, "shortened")

    @pytest.mark.parametrize(("language", "words"), [("en-GB", "outcome unknown"), ("de-DE", "Ausgang unbekannt")])
    def test_a_call_whose_result_was_never_stored_has_an_unknown_outcome_and_the_answer_goes_on(
        self, chat, axe, language, words
    ):
        talk = chat(language=language)
        call = {"id": "c1", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
        messages = [
            {"role": "user", "content": "What time is it?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
        ]
        talk.page.goto(f"/?chat={talk.page.evaluate(BY_REST, messages)}")

        shown = talk.page.locator(".call")
        shown.wait_for()
        assert shown.get_attribute("data-state") == "unknown"
        assert words in shown.locator(".outcome").inner_text()
        assert axe(talk.page) == []
        shoot(talk.page, f"unknown-{language}")
        talk.page.locator(".message.assistant .unanswered button").click()
        talk.page.wait_for_selector(".message.assistant:not(.live) .text")
        talk.wait()
        assert talk.page.locator(".unanswered").count() == 0

    def test_what_is_stored_of_an_answer_in_progress_is_shown_once(self, chat):
        talk = chat()
        talk.begin("What is the weather in Bergen? Count to 900")
        talk.page.wait_for_selector(".live .call[data-state=done]")
        talk.page.wait_for_selector(".live .text")

        talk.page.reload()
        talk.page.wait_for_selector(".live .text")

        assert talk.page.locator(".call").count() == 1
        talk.stop()
        assert talk.page.locator(".call").count() == 1


WRITTEN = """Here it is:

```python
print("hello")
```

مرحبا بالعالم"""


class TestAnswersInUse:
    def test_answers_and_code_are_copied_rated_and_each_paragraph_has_its_direction(self, chat):
        talk = chat()
        page = talk.page
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        messages = [{"role": "user", "content": "Say hello"}, {"role": "assistant", "content": WRITTEN}]
        page.goto(f"/?chat={page.evaluate(BY_REST, messages)}")
        answer = page.locator(".message.assistant")
        answer.locator(".code").wait_for()
        page.evaluate("void (window.setTimeout = () => 0)")  # else the sign of what is copied goes after a while

        assert answer.locator(".code .head").inner_text() == "python"
        colored = answer.locator("pre span").evaluate_all("all => all.map(each => [each.className, each.textContent])")
        assert colored == [["string", '"hello"']]
        talk.press(answer, "Copy the code")
        page.wait_for_selector(".code [href='#icon-check']", state="attached")
        assert page.evaluate("navigator.clipboard.readText()") == 'print("hello")'
        talk.press(answer, "Copy the answer")
        page.wait_for_selector(".foot [href='#icon-check']", state="attached")
        assert page.evaluate("navigator.clipboard.readText()") == WRITTEN
        paragraphs = answer.locator(".bubble .text > *")
        directions = paragraphs.evaluate_all("all => all.map(each => getComputedStyle(each).direction)")
        assert directions == ["ltr", "ltr", "rtl"]

        talk.press(answer, "Good answer")
        page.wait_for_selector("[aria-label='Good answer'][aria-pressed=true]")
        shoot(page, "code")
        page.reload()
        page.wait_for_selector("[aria-label='Good answer'][aria-pressed=true]")
        talk.press(answer, "Good answer")
        page.wait_for_selector("[aria-label='Good answer'][aria-pressed=false]")


class TestBranches:
    def test_an_answer_is_regenerated_and_the_previous_one_is_a_click_away(self, chat):
        talk = chat()
        talk.say(NAMED[0], "What is 2 + 3?")

        talk.press(talk.page.locator(".message.assistant").first, "Regenerate")
        talk.page.wait_for_selector(".place >> text=2 of 2")
        talk.wait()

        assert talk.questions == [NAMED[0]]
        shoot(talk.page, "regenerated")
        talk.page.get_by_role("button", name="Previous version").click()
        talk.page.wait_for_selector(".place >> text=1 of 2")
        assert talk.questions == [NAMED[0], "What is 2 + 3?"]
        assert talk.page.evaluate(f"{ROOT}.activeElement.closest('.place') !== null")

    def test_a_question_is_edited_and_every_version_can_be_selected(self, chat):
        talk = chat()
        talk.say("My name is Ada.", "What is my name?")
        for name in ("Bea", "Cleo"):
            talk.press(talk.page.locator(".message.user").first, "Edit")
            field = talk.page.get_by_role("textbox", name="Edit your message")
            field.fill(f"My name is {name}.")
            shoot(talk.page, "edit")
            field.press("Enter")
            talk.wait()
            assert talk.questions == [f"My name is {name}."]
            assert talk.answers[0].startswith(f"Noted: your name is {name}.")

        talk.page.get_by_role("button", name="3 of 3").click()
        talk.page.wait_for_selector("#versions[open] li")
        shoot(talk.page, "versions")
        versions = talk.page.locator("#versions li button")
        assert [each.inner_text() for each in versions.all()] == [
            f"{number} of 3: My name is {name}." for number, name in enumerate(("Ada", "Bea", "Cleo"), 1)
        ]
        versions.first.click()
        talk.page.wait_for_selector(".place >> text=1 of 3")

        assert talk.questions == ["My name is Ada.", "What is my name?"]
        talk.say("Who am I?")
        assert talk.answers[-1].startswith("Your name is Ada.")

    def test_a_message_created_by_rest_can_be_edited(self, chat):
        talk = chat()
        memory_id = talk.page.evaluate(BY_REST, [{"role": "user", "content": "My name is Ada."}])
        talk.page.goto(f"/?chat={memory_id}")
        talk.page.wait_for_selector(".message.user >> text=Ada")

        talk.press(talk.page.locator(".message.user"), "Edit")
        talk.page.get_by_role("textbox", name="Edit your message").fill("My name is Bea.")
        talk.page.get_by_role("button", name="Send", exact=True).first.click()
        talk.page.wait_for_selector(".message.assistant >> text=Bea")
        talk.wait()

        assert talk.questions == ["My name is Bea."]
        assert talk.page.get_by_role("button", name="2 of 2").is_visible()

    def test_escape_cancels_an_edit(self, chat):
        talk = chat()
        talk.say("Hello")

        talk.press(talk.page.locator(".message.user"), "Edit")
        talk.page.get_by_role("textbox", name="Edit your message").press("Escape")

        assert talk.page.locator(".edit").count() == 0
        assert talk.questions == ["Hello"]
        assert talk.page.get_by_role("button", name="Edit").evaluate(
            "each => each === each.getRootNode().activeElement"
        )

    def test_a_reload_shows_the_branch_in_use(self, chat):
        talk = chat()
        talk.say("My name is Ada.")
        talk.press(talk.page.locator(".message.assistant"), "Regenerate")
        talk.page.wait_for_selector(".place >> text=2 of 2")

        talk.page.reload()

        talk.page.wait_for_selector(".place >> text=2 of 2")
        assert len(talk.answers) == 1


class TestImages:
    def test_an_image_is_attached_previewed_sent_and_survives_an_edit(self, chat):
        talk = chat()
        talk.page.set_input_files("input[type=file]", [{"name": "red.png", "mimeType": "image/png", "buffer": PNG}])
        talk.page.wait_for_selector("#composer canvas")
        shoot(talk.page, "attached")

        talk.say("What is this?")

        assert talk.answers[0].startswith("I was sent an image")
        assert loaded_images(talk.page) == [4]
        talk.press(talk.message("What is this?"), "Edit")
        talk.page.fill(".edit textarea", "And what is that?")
        talk.page.press(".edit textarea", "Enter")
        talk.page.wait_for_selector(".place >> text=2 of 2")
        talk.wait()
        assert talk.questions[0].strip().startswith("And what is that?")
        assert loaded_images(talk.page) == [4]

    def test_a_large_image_is_pasted_and_fits_the_memory(self, chat):
        talk = chat()
        talk.page.evaluate(LARGE_IMAGE)
        talk.page.wait_for_selector("#composer canvas")

        talk.say("")

        assert talk.answers[0].startswith("I was sent an image")
        assert loaded_images(talk.page) == [1200]
        assert talk.page.locator("#conversations [aria-current] .title").inner_text() != ""

    def test_a_pasted_image_can_be_removed(self, chat):
        talk = chat()

        talk.page.evaluate(LARGE_IMAGE)
        talk.page.wait_for_selector("#composer canvas")
        talk.page.get_by_role("button", name="Remove file 1").click()

        assert talk.page.locator("#composer canvas").count() == 0

    def test_other_files_keep_their_names_and_unknown_ones_are_refused(self, chat):
        talk = chat()
        pdf = {"name": "Bill <May>.pdf", "mimeType": "application/pdf", "buffer": b"%PDF-1.7 nothing"}

        talk.page.set_input_files("input[type=file]", [{"name": "a.exe", "mimeType": "", "buffer": b"no"}])
        talk.page.wait_for_selector("#problem >> text=“a.exe” cannot be attached")
        latin, long = "Köln".encode("latin-1"), b"x" * 100_001
        talk.page.set_input_files("input[type=file]", [{"name": "a.py", "mimeType": "text/x-python", "buffer": latin}])
        talk.page.wait_for_selector("#problem >> text=“a.py” cannot be attached: it is no text in UTF-8.")
        talk.page.set_input_files("input[type=file]", [{"name": "b.rs", "mimeType": "", "buffer": long}])
        talk.page.wait_for_selector("#problem >> text=“b.rs” cannot be attached: a file of text has at most 100,000")
        assert talk.page.locator("#composer .named").count() == 0
        talk.page.set_input_files("input[type=file]", [pdf])
        talk.page.wait_for_selector("#composer .named >> text=Bill <May>.pdf")
        shoot(talk.page, "file")
        talk.say("What is this?")

        talk.page.reload()
        talk.page.wait_for_selector(".message.user a.named >> text=Bill <May>.pdf")

    def test_a_text_file_is_shown_by_its_name_and_survives_an_edit(self, chat):
        talk = chat()
        csv = {"name": "May <1>.csv", "mimeType": "text/csv", "buffer": "Köln;7\n".encode()}
        code = {"name": "köln.py", "mimeType": "text/x-python", "buffer": b"print(7)\n"}
        talk.page.set_input_files("input[type=file]", [csv, code])
        talk.page.wait_for_selector("#composer .named >> text=May <1>.csv")
        talk.page.wait_for_selector("#composer .named >> text=köln.py")

        talk.say("What is this?")

        talk.page.reload()
        talk.page.wait_for_selector(".message.user .named >> text=May <1>.csv")
        assert "Köln" not in talk.questions[0]
        talk.press(talk.message("What is this?"), "Edit")
        talk.page.fill(".edit textarea", "And what is that?")
        talk.page.press(".edit textarea", "Enter")
        talk.page.wait_for_selector(".place >> text=2 of 2")
        talk.wait()
        talk.page.wait_for_selector(".message.user .named >> text=May <1>.csv")
        messages = talk.page.evaluate(
            "fetch('/api/conversations/').then(response => response.json()).then(list =>"
            "fetch(`/api/conversations/${list.results[0].memory_id}/messages/`)).then(response => response.text())"
        )
        assert r">\nKöln;7\n\n</file>" in messages
        assert r">\nprint(7)\n\n</file>" in messages


class TestConversations:
    def test_a_new_chat_is_named_after_its_first_message_and_listed_first(self, chat):
        talk = chat()

        talk.say("My parrot is called Polly")

        first = talk.page.locator("#conversations section:first-child li:first-child [aria-current]")
        first.get_by_text("My parrot is called Polly").wait_for()
        talk.page.wait_for_selector("#heading >> text=My parrot is called Polly")
        talk.page.get_by_role("button", name="New chat", exact=True).click()
        talk.page.wait_for_selector("#welcome:visible")
        talk.page.go_back()
        talk.page.wait_for_selector(".message.user >> text=Polly")

    def test_a_temporary_chat_shows_until_when_it_is_kept(self, chat):
        talk = chat()

        assert talk.page.locator("#kept").is_hidden()
        talk.page.get_by_role("button", name="Temporary chat").click()
        talk.page.wait_for_selector("#kept:visible >> text=Kept until")
        talk.say("Forget this tomorrow")
        address = talk.page.url
        talk.page.get_by_role("button", name="New chat", exact=True).click()
        talk.page.wait_for_selector("#kept", state="hidden")
        talk.page.goto(address)
        talk.page.wait_for_selector("#kept:visible >> text=Kept until")
        talk.page.wait_for_selector(".message.user >> text=Forget this tomorrow")

    def test_the_list_is_in_order_by_keyboard(self, chat):
        talk = chat(user="visitor")
        page = talk.page
        talk.say("My tortoise is called Methuselah")
        page.reload()  # after the answer, the list is loaded again, and the focus goes to a link in place of a button
        menu = page.locator("#actions")

        def choose(words):
            page.locator("#conversations li", has_text="Methuselah").get_by_role("button").press("Enter")
            menu.get_by_role("button", name=words, exact=True).press("Enter")

        choose("Rename")
        shoot(page, "rename")
        page.keyboard.type("Old Methuselah")
        page.keyboard.press("Enter")
        page.wait_for_selector("#heading >> text=Old Methuselah")
        choose("Pin")
        page.wait_for_selector("#conversations section:first-child:has(h2:text-is('Pinned')) >> text=Old Methuselah")
        choose("Unpin")
        page.wait_for_selector("#conversations section:has(h2:text-is('Today')) >> text=Old Methuselah")
        choose("Archive")
        page.wait_for_selector("#conversations >> text=Old Methuselah", state="detached")
        page.get_by_role("button", name="Archived chats").press("Enter")
        page.wait_for_selector("#conversations li >> text=Old Methuselah")
        choose("Erase")
        page.get_by_role("dialog").get_by_role("button", name="Erase conversation").press("Enter")
        page.wait_for_selector("#welcome:visible")
        page.wait_for_selector("#conversations >> text=No conversations yet.")

    def test_a_search_opens_what_it_finds_where_it_is(self, chat, axe):
        talk = chat()
        page = talk.page
        make = [{"role": "user", "content": f"Page {number} of the logbook"} for number in range(300)]
        make[30]["content"] = "The **zeppelin** leaves at dawn, with umbrellas"
        logbook = page.evaluate(BY_REST, make)
        attic = page.evaluate(BY_REST, [{"role": "user", "content": "An old zeppelin is in the attic"}])
        assert page.evaluate(CHANGE, [attic, {"is_archived": True}]) == 200
        titled = page.evaluate(BY_REST, [{"role": "user", "content": "Nothing of that kind"}])
        assert page.evaluate(CHANGE, [titled, {"title": "Zeppelins, a short history"}]) == 200

        def search(words, found):
            page.fill("[type=search]", words)
            wanted = f"count => {ROOT}.querySelectorAll('#conversations li').length === count"
            page.wait_for_function(wanted, arg=found)

        # Messages come with the words around the hit, those of archived chats as such; titles come first.
        search("zeppelin", 3)
        first, *hits = page.locator("#conversations li").all()
        assert first.locator(".title").inner_text() == "Zeppelins, a short history"
        shown = {each.get_attribute("data-id"): each for each in hits}
        assert shown[attic].locator(".archived").inner_text() == "archived"
        assert shown[logbook].locator(".archived").count() == 0
        assert [each.inner_text() for each in page.locator("#conversations mark").all()] == ["zeppelin", "zeppelin"]
        shoot(page, "hits")
        assert axe(page) == []

        # A hit opens the conversation there, in one request for its messages; both ends are a click away.
        asked = []
        page.on("request", lambda request: asked.append(request.url) if f"{logbook}/messages/" in request.url else None)
        shown[logbook].locator("a").click()
        page.wait_for_selector(".message.found >> text=leaves at dawn")
        page.wait_for_selector("#memory tbody tr")  # it is loaded last
        assert len(asked) == 1
        inside = (
            "each => { const {top, bottom} = each.getBoundingClientRect(); return top >= 0 && bottom <= innerHeight; }"
        )
        assert page.locator(".message.found").evaluate(inside)
        shoot(page, "hit")
        page.reload()
        page.wait_for_selector(".message.found >> text=leaves at dawn")
        assert talk.questions[-1] != "Page 299 of the logbook"
        page.get_by_role("button", name="Newer messages").click()
        page.wait_for_function(f"() => {ROOT}.querySelectorAll('.message').length > 200")
        page.get_by_role("button", name="Newest message").click()
        page.wait_for_selector(".message >> text=Page 299 of the logbook")
        page.go_back()
        page.wait_for_selector("#welcome:visible")
        page.go_forward()
        page.wait_for_selector(".message.found >> text=leaves at dawn")
        talk.say("Hello")
        assert talk.questions[-2:] == ["Page 299 of the logbook", "Hello"]

        # What is not found has its words; any of them may do.
        search("zeppelin balloons", 0)
        sentence = "no message, title or archived chat has all of the words “zeppelin balloons”."
        page.locator("#conversations [data-part=empty]", has_text=sentence).wait_for()
        page.get_by_role("button", name="Search for any of the words").press("Enter")
        page.locator("#conversations li .snippet", has_text="in the attic").wait_for()
        assert page.get_by_role("button", name="Search for any of the words").count() == 0

    def test_tokens_are_counted_after_an_answer_and_a_link_to_nothing_shows_that(self, chat):
        talk = chat()
        assert talk.page.locator("#used").inner_text() == "Tokens used in 30 days: 0"

        talk.say("Hello")
        talk.page.wait_for_function(f"() => /: [1-9]/.test({ROOT}.getElementById('used').textContent)")

        for nothing in ("erased-long-ago", "demo-parcel"):  # the second one is somebody else's
            talk.page.goto(f"/?chat={nothing}")
            talk.page.wait_for_selector("#problem:visible >> text=This conversation is not there")
            assert talk.page.locator("#welcome").is_visible()
            assert nothing not in talk.page.url
        talk.say("Hello again")
        assert talk.page.locator("#problem").is_hidden()
        assert len(talk.answers) == 1

    def test_the_list_has_most_of_the_height_and_messages_are_close_together(self, chat):
        talk = chat(viewport={"width": 768, "height": 1024})
        talk.page.locator("#tabs").get_by_role("button", name="Conversations").click()
        heights = f"part => {ROOT}.querySelector(part).getBoundingClientRect().height"
        share = talk.page.evaluate(heights, "#conversations .scroll") / talk.page.evaluate(heights, "#conversations")
        assert share > 0.75
        assert overflow(talk.page) <= 0
        shoot(talk.page, "list-768")

        talk = chat()
        talk.say("Hello", "Hello again")
        boxes = [each.bounding_box() for each in talk.page.locator(".message .bubble").all()]
        gaps = [below["y"] - above["y"] - above["height"] for above, below in pairwise(boxes)]
        assert max(gaps) < 24
        shoot(talk.page, "gaps")

    def test_a_long_conversation_loads_back_to_its_beginning(self, chat):
        talk = chat("/?chat=demo-bread", user="demo")
        talk.page.wait_for_selector(".message.assistant")
        shown = talk.page.locator(".message").count()

        while talk.page.locator("#older").is_visible():
            talk.page.locator("#older").click()
            talk.page.wait_for_function(f"count => {ROOT}.querySelectorAll('.message').length > count", arg=shown)
            shown = talk.page.locator(".message").count()

        assert shown > 150
        talk.page.locator("#memory tbody tr").first.wait_for(state="attached")  # the panel is loaded beside
        assert talk.page.locator(".message").first.get_attribute("class") == "message user out shared"
        assert talk.tokens[1] == 4000
        assert talk.page.locator("#heading").inner_text() == "Twelve weeks of bread"  # wherever it is in the list
        assert "of 169 messages are sent" in talk.page.locator("[data-part=count]").inner_text()
        talk.page.get_by_role("button", name="Newest message").click()
        talk.page.get_by_role("button", name="Newest message").wait_for(state="hidden")

    def test_a_reader_who_scrolls_up_stays_there_while_the_memory_is_loaded(self, chat):
        talk = chat(user="demo")
        talk.page.evaluate(HELD_MEMORY)

        talk.page.locator("#conversations li[data-id=demo-bread] a").click()
        talk.page.wait_for_selector("#older:visible")
        talk.page.evaluate(f"{ROOT}.getElementById('scroller').scrollTop = 0")
        talk.page.evaluate("release()")
        talk.page.locator("#memory tbody tr").first.wait_for(state="attached")

        assert talk.page.evaluate(f"{ROOT}.getElementById('scroller').scrollTop") == 0

    def test_a_user_who_is_not_on_the_staff_cannot_see_system_messages(self, chat):
        talk = chat(user="visitor")

        talk.say(NAMED[0], *EVICTING, "What is my name?")

        assert talk.answers[-1].startswith("Your name is Ada.")
        assert "You are the assistant of a demo" not in talk.page.content()
        assert talk.page.locator("[data-part=summary]").is_hidden()
        assert "hidden" not in talk.page.locator("#messages").inner_text()


class TestAccessibility:
    @FORMS
    def test_axe_finds_nothing_and_nothing_is_cut_off(self, chat, open_page, axe, theme, viewport):
        size = "phone" if viewport == PHONE else "laptop"

        def check(page, name):
            page.evaluate(AT_REST)
            shoot(page, f"{name}-{size}-{theme}")
            assert overflow(page) <= 0
            assert axe(page) == []

        check(open_page(user=None, theme=theme, viewport=viewport), "sign-in")
        check(chat(user="demo", theme=theme, viewport=viewport).page, "welcome")
        talk = chat(theme=theme, viewport=viewport)
        talk.say(NAMED[0], "What is the weather in Bergen and in Atlantis?", "Think aloud: what can you do?")
        talk.press(talk.page.locator(".message.assistant").last, "Regenerate")
        talk.page.wait_for_selector(".place >> text=2 of 2")
        talk.wait()
        check(talk.page, "chat")
        talk.say("Please fail")
        check(talk.page, "failed")
        if viewport == PHONE:
            for view in ("Conversations", "Memory"):
                talk.page.locator("#tabs").get_by_role("button", name=view).click()
                check(talk.page, view.lower())
        talk.page.get_by_role("button", name="Erase conversation").click()
        check(talk.page, "dialog")

    def test_an_answer_is_announced_sentence_by_sentence(self, chat):
        talk = chat()

        talk.say("My name is Ada. I live in Bergen.")

        spoken = [each.text_content() for each in talk.page.locator("#announcements p").all()]
        assert spoken[0] == "The answer has started."
        assert spoken[-1] == "The answer is complete."
        assert "".join(spoken[1:-1]) == "Noted: your name is Ada; you live in Bergen.\n\n(Messages that I was sent: 2.)"

    def test_the_keyboard_is_enough(self, chat):
        talk = chat()

        talk.page.keyboard.press("Tab")
        assert talk.page.evaluate(f"{ROOT}.activeElement.textContent") == "Skip to the message field"
        talk.page.keyboard.press("Enter")
        talk.page.keyboard.type("My name is Ada.")
        talk.page.keyboard.press("Shift+Enter")
        talk.page.keyboard.type("I live in Bergen.")
        talk.page.keyboard.press("Enter")
        talk.wait()

        assert talk.questions == ["My name is Ada.\nI live in Bergen."]
        assert talk.page.evaluate(f"{ROOT}.activeElement.id") == "say"

    def test_the_colors_are_chosen_and_stay(self, chat):
        talk = chat(theme="light")

        talk.page.get_by_label("Colors").select_option("dark")
        talk.page.reload()
        talk.page.wait_for_selector("#welcome:visible")

        assert talk.page.get_by_label("Colors").input_value() == "dark"
        assert talk.page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"

    def test_reduced_motion_disables_transitions(self, chat):
        talk = chat(reduced_motion="reduce")

        talk.say("Hello")

        assert (
            talk.page.locator(".bubble").first.evaluate("each => getComputedStyle(each).transitionProperty") == "none"
        )

    @pytest.mark.parametrize("viewport", [LAPTOP, PHONE], ids=["laptop", "phone"])
    def test_it_is_translated_to_german(self, chat, viewport):
        talk = chat(language="de-DE", viewport=viewport)

        talk.say("Ich heiße Ada.", "Wie heiße ich?")

        assert talk.answers[-1].startswith("Dein Name ist Ada.")
        assert "von 240 Tokens" in talk.page.locator("[data-part=used]").text_content()
        assert talk.page.locator("html").get_attribute("lang") == "de"
        assert overflow(talk.page) <= 0
        shoot(talk.page, f"german-{'phone' if viewport == PHONE else 'laptop'}")


def link(address, words):
    """Return a link as the page renders it."""
    return f'<a href="{address}" target="_blank" rel="noopener noreferrer nofollow">{words}</a>'


MARKDOWN = [
    ("One\ntwo\n\nthree", "<p>One<br>two</p><p>three</p>"),
    ("**bold *and* both** _em_ ~~no~~", "<p><strong>bold <em>and</em> both</strong> <em>em</em> <del>no</del></p>"),
    ("snake_case_name and 2 * 3 * 4 and \\*stars\\*", "<p>snake_case_name and 2 * 3 * 4 and *stars*</p>"),
    ("# Title\n### Third", "<h4>Title</h4><h6>Third</h6>"),
    ("# C#\n## Closed ## \n# #", "<h4>C#</h4><h5>Closed</h5><h4></h4>"),
    ("- a\n- b\n  - c", "<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul>"),
    ("1. x\n2. y\n\n7) z", "<ol><li>x</li><li>y</li><li>z</li></ol>"),
    ("3. c\n4. d", '<ol start="3"><li>c</li><li>d</li></ol>'),
    ("`a < b` and ``c ` d``", "<p><code>a &lt; b</code> and <code>c ` d</code></p>"),
    (
        "```python\ndef f(n=0x1F):  # it's\n    return 'a\\'b' if n else None\n```",
        '<pre tabindex="0" data-language="python"><code><span class="keyword">def</span> f(n='
        '<span class="number">0x1F</span>):  <span class="comment"># it\'s</span>\n    '
        '<span class="keyword">return</span> <span class="string">\'a\\\'b\'</span> <span class="keyword">if</span> n '
        '<span class="keyword">else</span> <span class="keyword">None</span></code></pre>',
    ),
    (
        "```SQL\nSelect 'a' -- b\n```\n```unknown\nif 1\n```",
        '<pre tabindex="0" data-language="SQL"><code><span class="keyword">Select</span> '
        '<span class="string">\'a\'</span> <span class="comment">-- b</span></code></pre>'
        '<pre tabindex="0" data-language="unknown"><code>if 1</code></pre>',
    ),
    (
        '```js\n/* open\n"<b>"',
        '<pre tabindex="0" data-language="js"><code><span class="comment">/* open\n"&lt;b&gt;"</span></code></pre>',
    ),
    (
        "```py\n<b> **x**\n```\nafter",
        '<pre tabindex="0" data-language="py"><code>&lt;b&gt; **x**</code></pre><p>after</p>',
    ),
    ("```\nopen", '<pre tabindex="0"><code>open</code></pre>'),
    ("> quoted\n> more", "<blockquote><p>quoted<br>more</p></blockquote>"),
    (
        "| a | b |\n|---|---|\n| 1 | **2** |",
        '<div class="wide" tabindex="0"><table><thead><tr><th>a</th><th>b</th></tr></thead>'
        "<tbody><tr><td>1</td><td><strong>2</strong></td></tr></tbody></table></div>",
    ),
    (
        "a | b\n:-|-:\nc\n",
        '<div class="wide" tabindex="0"><table><thead><tr><th>a</th><th>b</th></tr></thead><tbody></tbody></table>'
        "</div><p>c</p>",
    ),
    (
        "a|\n-|\nb|c|d\n",
        '<div class="wide" tabindex="0"><table><thead><tr><th>a</th></tr></thead>'
        "<tbody><tr><td>b</td></tr></tbody></table></div>",
    ),
    ("a|b\n- -|-", "<p>a|b</p><ul><li>-|-</li></ul>"),
    ("**a **b** and ***c***", "<p>**a <strong>b</strong> and <strong>*c</strong>*</p>"),
    ("```not `code`", "<p>```not <code>code</code></p>"),
    ("\\``a`", "<p>`<code>a</code></p>"),
    ("- a\n- b\n\n  c", "<ul><li>a</li><li><p>b</p><p>c</p></li></ul>"),
    ("a\n\n---\n\nb", "<p>a</p><hr><p>b</p>"),
    ("[text](https://example.com/a_(b))", f"<p>{link('https://example.com/a_(b)', 'text')}</p>"),
    ("See https://example.com/x.", f"<p>See {link('https://example.com/x', 'https://example.com/x')}.</p>"),
    ("![pixel](https://example.com/p.png)", f"<p>{link('https://example.com/p.png', 'pixel')}</p>"),
    *(
        (each, f"<p>{each}</p>")
        for each in ("[x](javascript:alert(1))", "[y](data:text/html,z)", "[z](//evil.example)")
    ),
    ("<img src=x onerror=alert(1)>", "<p>&lt;img src=x onerror=alert(1)&gt;</p>"),
]


def paragraphs(piece):
    """Return a function to text of a given size, of the longest paragraphs that are formatted."""
    paragraph = piece * (19_000 // len(piece))
    return lambda size: "\n\n".join([paragraph[:size]] * max(1, size // 20_000))


HOSTILE = {
    "heading with spaces": lambda size: "# a" + " " * size + "b",
    "heading with marks": lambda size: "# " + "#" * size + "b",
    "fence with spaces": lambda size: "```" + " " * size + "`",
    "fence with a long language": lambda size: "```" + "a" * size + "`",
    "long fence": lambda size: "~" * size + "`",
    "many fences": lambda size: "```\n```\n" * (size // 8),
    "delimiters with spaces": lambda size: "|\n-|" + " " * size + "x",
    "delimiters in vain": lambda size: "|\n" + "-|" * (size // 2) + "x",
    "item with spaces": lambda size: "- " + " " * size + "a\u2028",
    "rule in vain": lambda size: "- " * (size // 2) + "x",
    "long and wide table": lambda size: "|" * (size // 3) + "\n-|-\n" + "|\n" * (size // 3),
    **{
        f"code with {piece}": lambda size, piece=piece, language=language: (
            f"```{language}\n" + piece * (size // len(piece))
        )
        for language, piece in (
            ("py", '"""'),
            ("py", "'\\"),
            ("js", "/*"),
            ("js", "`\\"),
            ("js", '"\\\n'),
            ("html", "<!--"),
            ("c", "1_"),
            ("c", "a1."),
            ("py", "if "),
            ("py", '"a"'),
            ("sql", "-- -"),
        )
    },
    "link with spaces": lambda size: "[a](" + " " * size,
    "ticks before text": lambda size: "\n\n".join(["`" * 9_000 + "a" * 9_000] * (1 + size // 20_000)),
    **{each: paragraphs(each) for each in ("**a ", "~~a ", "*a ", "_a ", "`a``", '[a](b "', "http://.", "**a `b ~~c ")},
}


class TestMarkdown:
    @pytest.mark.parametrize(("source", "shown"), MARKDOWN)
    def test_it_is_rendered_and_never_raw_html(self, markdown_page, source, shown):
        assert rendered(markdown_page, source) == shown

    @pytest.mark.parametrize("piece", ["> ", "- ", "*", "**a", "_a_ ", "`", "[", "](", "|", "[a](", "~~", "1. ", "\\"])
    def test_hostile_texts_are_rendered_in_time_and_completely(self, markdown_page, piece):
        text = markdown_page.evaluate(
            "async source => (await import('/static/chatmemory_page/markdown.js')).markdown(source).textContent",
            f"{piece * 20_000}\nend",
        )

        assert text.endswith("end")

    @pytest.mark.parametrize("shape", HOSTILE)
    def test_it_takes_time_in_proportion_to_a_hostile_text(self, markdown_page, shape):
        for size in (2_000, 200_000):
            limit = max(150, size / 40)
            least = markdown_page.evaluate(
                """async ([source, limit]) => {
                    // The machine may pause: the shortest time of some counts.
                    const {markdown} = await import("/static/chatmemory_page/markdown.js");
                    let least = Infinity;
                    for (let tries = 0; tries < 5 && least >= limit; tries += 1) {
                        const start = performance.now();
                        markdown(source);
                        least = Math.min(least, performance.now() - start);
                    }
                    return least;
                }""",
                [HOSTILE[shape](size), limit],
            )
            assert least < limit

    def test_more_rows_than_a_function_can_have_arguments_are_rendered(self, markdown_page):
        assert rendered(markdown_page, "a|b\n-|-\n" + "|\n" * 200_000).count("<tr>") == 200_001


@pytest.fixture(scope="module")
def markdown_page(chromium, site, sessions):
    """Yield a page that no test changes."""
    context = chromium.new_context(base_url=site)
    context.set_default_timeout(PATIENCE)
    context.add_cookies([{"name": "sessionid", "value": sessions["demo"], **HERE}])
    page = context.new_page()
    page.goto("/")
    yield page
    context.close()


def rendered(page, source):
    return page.evaluate(
        """async source => {
            const {markdown} = await import("/static/chatmemory_page/markdown.js");
            const box = document.createElement("div");
            box.append(markdown(source));
            return box.innerHTML;
        }""",
        source,
    )


class TestPolicy:
    def test_messages_with_html_are_shown_as_text(self, chat):
        talk = chat()
        evil = "<img src=x onerror=alert(1)><script>alert(2)</script>"

        talk.say(f"My name is {evil}", "What is my name?")

        assert evil in talk.questions[0]
        assert evil in talk.answers[1]
        assert talk.page.locator("#messages :is(img, script)").count() == 0

    def test_the_documentation_of_the_api_works_under_its_policy(self, open_page):
        opened = open_page("/api/docs/")

        opened.locator(".opblock").first.wait_for()

    def test_the_policy_is_in_force(self, chromium, site, session_of):
        context = chromium.new_context(base_url=site)
        context.set_default_timeout(PATIENCE)
        context.add_cookies(session_of("demo"))
        page = context.new_page()
        page.goto("/")

        page.evaluate("""() => {
            window.refused = [];
            const hear = event => window.refused.push(event.effectiveDirective);
            document.addEventListener("securitypolicyviolation", hear);
            const script = document.createElement("script");
            script.textContent = "window.ran = true";
            const image = document.createElement("img");
            image.src = "data:image/png;base64,AAAA";
            document.body.append(script, image);
        }""")
        page.wait_for_function("() => window.refused.length > 1")

        assert sorted(page.evaluate("window.refused")) == ["img-src", "script-src-elem"]
        assert page.evaluate("window.ran") is None
        context.close()


def slide(page, value):
    """Move the slider as a mouse does."""
    page.locator("[data-part=slider]").evaluate(
        "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input', {bubbles: true})); }", value
    )


def loaded_images(page):
    """Return the widths of the images in the messages, once they are loaded."""
    page.wait_for_function(f"() => [...{ROOT}.querySelectorAll('#messages img')].every(each => each.complete)")
    return page.locator("#messages img").evaluate_all("each => each.map(image => image.naturalWidth)")
