"""Who signs in to the chat: by session, by the policy's tokens, and by DRF's classes."""

import json
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache
from django.test import Client
from django.urls import resolve
from rest_framework import exceptions
from rest_framework.authentication import BaseAuthentication, BasicAuthentication, CSRFCheck, SessionAuthentication
from rest_framework.authtoken.models import Token
from rest_framework.test import APIClient

from chatmemory_django.access import AccessPolicy, NotAllowedError
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.models import Conversation
from tests.faces.chat.http.test_http import reason_of
from tests.faces.chat.scripted import ScriptedModel

pytestmark = pytest.mark.django_db(transaction=True)

MESSAGE = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Hello"}]}
QUESTION = {"id": "c", "message": MESSAGE}


class Badges(BaseAuthentication):
    """As JWT is: ``Authorization: Bearer`` and a name that only the site can have signed."""

    def authenticate(self, request):
        kind, _, name = request.headers.get("Authorization", "").partition(" ")
        if kind != "Bearer":
            return None
        if not name.startswith("signed-"):
            raise exceptions.AuthenticationFailed({"detail": "Given badge is not valid.", "code": "not_valid"})
        return User.objects.get(username=name.removeprefix("signed-")), {"scope": name}

    def authenticate_header(self, request):
        return 'Bearer realm="badges"'


class BadgesInCookies(Badges):
    """As JWT in cookies is: it must come with a CSRF token."""

    def authenticate(self, request):
        if (name := request.COOKIES.get("badge")) is None:
            return None
        if name == "wrong":
            raise exceptions.AuthenticationFailed
        check = CSRFCheck(lambda request: None)
        check.process_request(request)
        if reason := check.process_view(request, None, (), {}):
            raise exceptions.PermissionDenied(f"CSRF Failed: {reason}")
        return User.objects.get(username=name), None


class Anybody(BaseAuthentication):
    def authenticate(self, request):
        from django.contrib.auth.models import AnonymousUser

        return AnonymousUser(), "a key"


class Scoped(AccessPolicy):
    authentication_classes = (Badges,)

    def user(self, request):
        user = super().user(request)
        if getattr(request, "auth", None) != {"scope": "signed-ann"}:
            raise NotAllowedError(403, "Wrong scope.")
        return user


@pytest.fixture(autouse=True)
def site(settings) -> None:
    settings.CHATMEMORY = {"CHAT": {"ASSISTANT": Assistant(ScriptedModel("Hi.")), "THROTTLE_RATE": None}}
    cache.clear()


@pytest.fixture
def drf(settings):
    """Return a function that sets the classes by which users sign in to DRF."""
    resolve("/api/")  # the views of REST read the setting once, when they are imported

    def drf(*classes):
        named = [f"{each.__module__}.{each.__name__}" for each in classes]
        settings.REST_FRAMEWORK = {"DEFAULT_AUTHENTICATION_CLASSES": named}

    return drf


@pytest.fixture
def ann() -> SimpleNamespace:
    user = User.objects.create_user("ann", password="right")
    return SimpleNamespace(user=user, token=Token.objects.create(user=user).key)


def ask(authorization: str | None = None, client: Client | None = None, **headers: str):
    """Return the response to a question of one message, whose answer comes as a whole."""
    named = {} if authorization is None else {"Authorization": authorization}
    client = client or Client(enforce_csrf_checks=True)
    return client.post(
        "/api/chat", QUESTION, "application/json", headers={"Accept": "application/json"} | named | headers
    )


def test_who_signs_in_to_rest_signs_in_to_the_chat(ann, drf):
    drf(Badges)
    badge = {"Authorization": "Bearer signed-ann"}

    assert ask(**badge).json()["message"]["parts"][-1]["text"] == "Hi."
    assert [each["role"] for each in Client(headers=badge).get("/api/chat/c/messages").json()] == ["user", "assistant"]


def test_others_signatures_are_refused_with_the_class_s_challenge(ann, drf):
    drf(Badges)

    refused = ask("Bearer forged-ann")

    assert (refused.status_code, refused["WWW-Authenticate"]) == (401, 'Bearer realm="badges"')
    assert reason_of(refused) == "Incorrect authentication credentials."
    assert (ask().status_code, ask()["WWW-Authenticate"]) == (401, 'Bearer realm="badges"')


@pytest.mark.parametrize("wrong", [{"authorization": "Bearer forged-ann"}, {"Cookie": "badge=wrong"}])
def test_wrong_credentials_of_any_class_are_counted(wrong, ann, drf):
    drf(Badges, BadgesInCookies)

    answers = [ask(**wrong).status_code for _ in range(22)]

    assert answers == [401] * 20 + [429] * 2
    assert ask("Bearer signed-ann").status_code == 200
    assert ask().status_code == 401  # nothing is nothing wrong


def test_sessions_and_the_policy_s_tokens_stay_beside_drf_s_classes(ann, drf):
    drf(Badges)
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(ann.user)

    assert ask(f"Bearer {ann.token}").status_code == 200
    assert ask(f"Token {ann.token}").status_code == 200
    assert browser.get("/api/chat/c/messages").status_code == 200
    refused = ask(client=browser)
    assert (refused.status_code, reason_of(refused)[:5]) == (403, "CSRF:")
    token = "a" * 32
    browser.cookies["csrftoken"] = token
    assert ask(client=browser, **{"X-CSRFToken": token}).status_code == 200


def test_a_class_that_checks_the_csrf_token_does_so_in_the_chat(ann, drf):
    drf(BadgesInCookies)
    browser = Client(enforce_csrf_checks=True)
    browser.cookies["badge"] = "ann"

    refused = ask(client=browser)
    assert (refused.status_code, reason_of(refused)[:12]) == (403, "CSRF Failed:")
    browser.cookies["csrftoken"] = "a" * 32
    assert ask(client=browser, **{"X-CSRFToken": "a" * 32}).status_code == 200


def test_the_password_of_a_proxy_does_not_replace_a_session(ann, drf):
    drf(SessionAuthentication, BasicAuthentication)  # DRF's default
    browser = Client()
    browser.force_login(ann.user)

    assert ask("Basic c3RhZ2luZzpzZWNyZXQ=", client=browser).status_code == 200
    assert ask("Basic YW5uOnJpZ2h0").status_code == 200  # ann:right
    refused = ask("Basic c3RhZ2luZzpzZWNyZXQ=")
    # With "Basic", a browser would ask the user for a password.
    assert (refused.status_code, refused["WWW-Authenticate"]) == (401, "Bearer")


def test_a_page_of_another_site_cannot_use_a_password_that_the_browser_sends(ann, drf):
    drf(BasicAuthentication)
    client = Client(headers={"Authorization": "Basic YW5uOnJpZ2h0", "Accept": "application/json"})

    forged = client.post("/api/chat", json.dumps(QUESTION), "text/plain")

    assert (forged.status_code, Conversation.objects.count()) == (415, 0)
    assert client.post("/api/chat/c/stop", content_type="text/plain").status_code == 415
    assert client.post("/api/chat", QUESTION, "application/json").status_code == 200


def test_a_key_of_nobody_signs_nobody_in(drf):
    drf(Anybody)

    assert ask().status_code == 401


def test_the_policy_has_the_last_word_and_reads_what_the_class_has_found(ann, settings):
    settings.CHATMEMORY["ACCESS_POLICY"] = f"{__name__}.Scoped"
    User.objects.create_user("bob")

    assert [ask(f"Bearer signed-{name}").status_code for name in ("ann", "bob")] == [200, 403]


def test_a_test_forces_a_user_in_the_chat_as_in_rest(ann, drf):
    drf(Badges)
    client = APIClient()
    client.force_authenticate(ann.user)

    response = client.get("/api/chat/c/messages")

    assert (response.status_code, response.json()) == (200, [])


def test_a_site_without_drf_knows_sessions_alone(ann, drf, settings):
    drf(Badges)
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if not app.startswith("rest_framework")]
    browser = Client()
    browser.force_login(ann.user)

    assert ask(client=browser).status_code == 200
    assert (ask("Bearer signed-ann").status_code, ask()["WWW-Authenticate"]) == (401, "Bearer")


class TestLoginRequiredMiddleware:
    """Django's middleware sends everybody else to a form, but the chat answers programs."""

    @pytest.fixture(autouse=True)
    def middleware(self, settings) -> None:
        settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]

    def test_tokens_pass(self, ann):
        client = Client(headers={"Authorization": f"Bearer {ann.token}"})

        assert ask(client=client).status_code == 200
        assert [client.get(f"/api/chat/c/{each}").status_code for each in ("messages", "stream", "files/1/0")] == [
            200,
            204,
            404,
        ]
        assert client.post("/api/chat/c/stop").status_code == 200
        assert client.get("/api/conversations/").status_code == 200

    def test_nobody_is_refused_and_sent_nowhere(self):
        assert ask().status_code == 401
        assert [Client().get(f"/api/chat/c/{each}").status_code for each in ("messages", "stream", "files/1/0")] == [
            401,
            401,
            401,
        ]
        assert Client().post("/api/chat/c/stop").status_code == 401
