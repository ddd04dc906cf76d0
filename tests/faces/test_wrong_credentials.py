"""Wrong tokens and passwords are counted by every face, and refuse nobody who has the right ones."""

from types import SimpleNamespace

import pytest
from django.contrib.auth import authenticate, login
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from django.core.cache import cache
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from rest_framework.authtoken.models import Token

from chatmemory_django.access import WrongPasswordsMiddleware, count_wrong_credentials
from tests.faces.contrib.mcp import test_mcp_attacks as mcp

pytestmark = pytest.mark.django_db(transaction=True)

ADDRESS = "10.0.0.1"
APIS = {"REST": "/api/conversations/", "chat": "/api/chat/c/messages", "OpenAI": "/openai/v1/conversations"}
FORMS = ["/sign-in/", "/admin/login/", "/api/token/"]


@pytest.fixture(autouse=True)
def site(settings) -> None:
    settings.CHATMEMORY = {}
    settings.ALLOWED_HOSTS = ["example.com", "testserver"]
    cache.clear()


@pytest.fixture
def ann() -> SimpleNamespace:
    user = User.objects.create_user("ann", password="right", is_staff=True)
    return SimpleNamespace(user=user, token=Token.objects.create(user=user).key)


def send(face: str, token: str, address: str = ADDRESS) -> tuple[int, int]:
    """Send *token* to an API, and return the status of the response, and its ``Retry-After`` or 0."""
    if face == "MCP":
        response = mcp.post(token, address=address)
        return response.status, int(response.headers.get("retry-after", 0))
    client = Client(REMOTE_ADDR=address, headers={"Authorization": f"Bearer {token}"})
    answer = client.post(APIS[face], {}, "application/json") if face == "OpenAI" else client.get(APIS[face])
    return answer.status_code, int(answer.headers.get("Retry-After", 0))


def sign_in(form: str, name: str, password: str, address: str = ADDRESS) -> tuple[int, int]:
    """Send a password to a form, and return what ``send`` does."""
    response = Client(REMOTE_ADDR=address).post(form, {"username": name, "password": password})
    return response.status_code, int(response.headers.get("Retry-After", 0))


def assert_all_pass(ann: SimpleNamespace, address: str = ADDRESS) -> None:
    """Assert that a valid token, a session and the right password pass."""
    assert {face: send(face, ann.token, address) for face in [*APIS, "MCP"]} == dict.fromkeys([*APIS, "MCP"], (200, 0))
    browser = Client(REMOTE_ADDR=address)
    browser.force_login(ann.user)
    assert [browser.get(APIS[face]).status_code for face in ("REST", "chat")] == [200, 200]
    assert [sign_in(form, "ann", "right", address) for form in FORMS] == [(302, 0), (302, 0), (200, 0)]


@pytest.mark.parametrize("face", [*APIS, "MCP"])
def test_wrong_tokens_are_refused_and_valid_credentials_pass(face, ann):
    answers = [send(face, f"wrong{number}") for number in range(25)]

    assert answers[:20] == [(401, 0)] * 20
    assert {status for status, _ in answers[20:]} == {429}
    assert all(0 < seconds <= 60 for _, seconds in answers[20:])
    assert_all_pass(ann)
    assert [send(each, "wrong")[0] for each in [*APIS, "MCP"]] == [429] * 4  # they are counted together
    assert send(face, "wrong", "10.0.0.2") == (401, 0)


@pytest.mark.parametrize("form", FORMS)
def test_wrong_passwords_are_refused_by_account_and_address(form, ann):
    answers = [sign_in(form, "ann", "wrong") for _ in range(25)]

    usual = answers[0]
    assert usual in {(200, 0), (400, 0)}
    assert answers[:20] == [usual] * 20
    assert {status for status, _ in answers[20:]} == {429}
    assert all(0 < seconds <= 60 for _, seconds in answers[20:])
    assert_all_pass(ann)
    assert {sign_in(each, "ann", "wrong")[0] for each in FORMS} == {429}  # they are counted together
    assert sign_in(form, "bob", "wrong") == usual
    assert sign_in(form, "ann", "wrong", "10.0.0.2") == usual
    assert send("REST", "wrong") == (401, 0)


def test_a_form_that_tries_a_name_first_and_then_an_address_lets_the_right_password_pass(rf, ann):
    def view(request: HttpRequest) -> HttpResponse:
        request.session = SessionStore()
        found = [authenticate(request, username=name, password="right") for name in ("ann@example.com", "ann")]
        login(request, found[-1])
        return HttpResponse("Hello")

    site = WrongPasswordsMiddleware(view)

    assert {site(rf.post("/", REMOTE_ADDR=ADDRESS)).status_code for _ in range(25)} == {200}


@pytest.mark.parametrize("face", [*APIS, "MCP"])
def test_tokens_of_one_ipv6_network_are_counted_together(face, ann):
    answers = [send(face, "wrong", f"2001:db8:1:2:{number:x}::1") for number in range(25)]

    assert [status for status, _ in answers] == [401] * 20 + [429] * 5
    assert send(face, "wrong", "2001:db8:1:3::1") == (401, 0)
    assert_all_pass(ann, "2001:db8:1:2::1")


@pytest.mark.parametrize("form", FORMS)
def test_passwords_of_one_ipv6_network_are_counted_together(form, ann):
    answers = [sign_in(form, "ann", "wrong", f"2001:db8:1:2:{number:x}::1") for number in range(25)]

    assert [status for status, _ in answers[20:]] == [429] * 5
    assert_all_pass(ann, "2001:db8:1:2::1")


def test_names_that_a_client_makes_up_neither_fill_the_cache_nor_evade_the_rate(ann, monkeypatch):
    counted = set()
    incr = cache.incr
    monkeypatch.setattr(cache, "incr", lambda key: counted.add(key) or incr(key))
    request = RequestFactory().get("/", REMOTE_ADDR=ADDRESS)

    waits = [count_wrong_credentials(request, f"made up {number}") for number in range(20 * 16 + 1)]

    assert len(counted) <= 16
    assert any(waits)
    assert_all_pass(ann)
