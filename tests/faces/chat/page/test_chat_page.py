"""The chat page and the tag ``chat_widget`` in any site: addresses, who may see them, parts, and what scripts get."""

import json
import re

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core.checks import Warning as CheckWarning
from django.core.exceptions import ImproperlyConfigured
from django.template import Context, Template
from django.test.utils import override_script_prefix
from django.utils import translation

from chatmemory_django.access import AccessPolicy, NotAllowedError
from chatmemory_django.chat.page import checks, modules
from chatmemory_django.chat.page.conf import Page
from chatmemory_django.chat.page.texts import TEXTS

pytestmark = pytest.mark.django_db

PLAIN, OWN, HALF = (f"tests.faces.chat.page.{name}_urls" for name in ("plain", "own", "half"))
ASSISTANT = "example_project.assistants.assistant"


class Visitors(AccessPolicy):
    """Everybody may chat."""

    def user(self, request):
        return AnonymousUser()

    def is_allowed(self, request):
        return True


class Members(AccessPolicy):
    """Those who signed in may chat, if their name is short."""

    def is_allowed(self, request):
        return super().is_allowed(request) and len(request.user.get_username()) < 4


class Tokens(AccessPolicy):
    """Sessions are no way to sign in."""

    def user(self, request):
        raise NotAllowedError(401, "Send a token.")


@pytest.fixture(autouse=True)
def templates(settings):
    """The templates are those of the package: the example site has its own."""
    folders = [modules.FOLDER.parents[1] / "templates"]
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "DIRS": folders, "APP_DIRS": False}]
    settings.LOGIN_URL = "/log-in/?by=mail"


@pytest.fixture
def plain(settings):
    settings.ROOT_URLCONF = PLAIN
    settings.CHATMEMORY = {"CHAT": {"ASSISTANT": ASSISTANT}}
    return settings


@pytest.fixture
def ann(client):
    ann = User.objects.create_user("ann")
    client.force_login(ann)
    return ann


def given(html):
    """Return what the scripts are given in *html*."""
    return json.loads(re.search(r'<script id="site" type="application/json">(.+?)</script>', html)[1])


def shown(client, address="/help/talk/", **headers):
    response = client.get(address, headers=headers)
    assert response.status_code == 200, response.content
    return response.content.decode()


def tag(client, words):
    return shown(client, f"/shop/?tag=chat_widget {words}")


class TestWhoSeesIt:
    def test_who_is_not_signed_in_is_sent_to_the_login_of_the_site_and_back(self, client, plain):
        response = client.get("/help/talk/?chat=x")

        assert response.url == "/log-in/?by=mail&next=/help/talk/%3Fchat%3Dx"

    def test_the_policy_lets_visitors_chat(self, client, plain):
        plain.CHATMEMORY = {**plain.CHATMEMORY, "ACCESS_POLICY": f"{__name__}.Visitors"}

        assert given(shown(client))["user"] == ""

    def test_the_policy_refuses_users_with_a_text_and_not_with_a_login_that_would_lead_back(self, client, plain):
        client.force_login(User.objects.create_user("eve-long"))

        plain.CHATMEMORY = {**plain.CHATMEMORY, "ACCESS_POLICY": f"{__name__}.Members"}
        assert (client.get("/help/talk/").status_code, client.get("/shop/").content.count(b"log-in")) == (403, 1)
        plain.CHATMEMORY = {**plain.CHATMEMORY, "ACCESS_POLICY": f"{__name__}.Tokens"}
        refused = client.get("/help/talk/")
        assert (refused.status_code, refused.content) == (401, b"Send a token.")

    def test_the_tag_shows_where_to_sign_in(self, client, plain):
        html = shown(client, "/shop/")

        assert '<a href="/log-in/?by=mail&amp;next=/shop/">Sign in to chat</a>' in html
        assert "chat-memory>" not in html

    def test_a_middleware_that_demands_a_login_lets_the_scripts_pass(self, client, plain):
        plain.MIDDLEWARE = [*plain.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]

        assert client.get(modules.address("page")).status_code == 200


class TestAddresses:
    @pytest.mark.django_db(transaction=True)
    def test_the_whole_chat_is_one_include_at_any_prefix(self, client, plain, ann):
        addresses = given(shown(client))["addresses"]

        assert addresses == {
            "conversations": "/help/talk/api/conversations/",
            "chat": {"post": "/help/talk/api/chat", "root": "/help/talk/api/chat/"},
            "page": "/help/talk/",
            "signIn": "/log-in/?by=mail",
        }
        assert client.get(addresses["conversations"]).status_code == 200
        assert client.get(f"{addresses['chat']['root']}x/messages").status_code == 200
        assert client.post(addresses["chat"]["post"], "{", "application/json").status_code == 400

    @pytest.mark.django_db(transaction=True)
    def test_a_site_may_have_the_api_and_the_chat_elsewhere(self, client, settings, ann):
        settings.ROOT_URLCONF = OWN

        addresses = given(shown(client, "/talk/"))["addresses"]

        assert addresses["conversations"] == "/v1/memory/conversations/"
        assert addresses["chat"] == {"post": "/v1/chat/", "root": "/v1/chat/"}
        assert client.get(addresses["conversations"]).status_code == 200
        assert client.get(f"{addresses['chat']['root']}x/messages").status_code == 200

    def test_a_script_name_is_in_front_of_them(self, client, plain, ann):
        with override_script_prefix("/app/"):
            html = shown(client)

        assert given(html)["addresses"]["page"] == "/app/help/talk/"

    def test_W092_the_urls_lack_what_the_page_asks(self, client, settings):
        assert checks.check_urls() == []
        settings.ROOT_URLCONF = HALF

        [found] = checks.check_urls()

        assert (type(found), found.id) == (CheckWarning, "chatmemory.W092")
        assert found.msg.endswith(
            'lack include("chatmemory_django.rest.urls") and include("chatmemory_django.chat.urls").'
        )
        client.force_login(User.objects.create_user("ann"))
        with pytest.raises(ImproperlyConfigured, match=r"needs include\(\"chatmemory_django.rest.urls\"\) and"):
            client.get("/talk/")


class TestScripts:
    def test_they_are_kept_for_ever_at_an_address_that_changes_with_them(self, client, plain, monkeypatch):
        address = modules.address("page")
        served = client.get(address)

        assert served.headers["Content-Type"] == "text/javascript; charset=utf-8"
        assert served.headers["Cache-Control"] == "public, max-age=31536000, immutable"
        assert served.content == (modules.FOLDER / "page.js").read_bytes()
        assert "Vary" not in served.headers or "Cookie" not in served.headers["Vary"]
        monkeypatch.setattr(modules, "contents", lambda: {**modules.read(), "dom": b"other"})
        assert modules.address("page") != address
        assert client.get(address).headers["Cache-Control"] == "no-cache"

    def test_what_one_imports_is_below_the_same_hash(self, client, plain):
        folder = modules.address("page").removesuffix("page.js")
        names = {name for content in modules.read().values() for name in re.findall(rb'from "\./(\w+)\.js"', content)}

        assert {client.get(f"{folder}{name.decode()}.js").status_code for name in names} == {200}
        assert client.get(f"{folder}nothing.js").status_code == 404

    def test_they_use_no_address_of_their_own(self):
        for name, content in modules.read().items():
            assert not re.search(rb'["\'`]/(?:api|chat|sign-in|static|accounts)\b', content), name

    @pytest.mark.parametrize(
        ("changed", "expected"),
        [
            ({}, ("csrftoken", "X-CSRFTOKEN")),
            ({"CSRF_COOKIE_NAME": "__Host-token", "CSRF_HEADER_NAME": "HTTP_X_TOKEN"}, ("__Host-token", "X-TOKEN")),
            ({"CSRF_USE_SESSIONS": True}, ("", "X-CSRFTOKEN")),
            ({"CSRF_COOKIE_HTTPONLY": True}, ("", "X-CSRFTOKEN")),
        ],
    )
    def test_they_know_how_the_site_protects_posts(self, client, plain, ann, changed, expected):
        for name, value in changed.items():
            setattr(plain, name, value)

        csrf = given(shown(client))["csrf"]

        assert (csrf["cookie"], csrf["header"]) == expected
        client.handler.enforce_csrf_checks = True
        for token, status in ((csrf["token"], 201), ("x" * 64, 403)):
            posted = client.post(
                "/help/talk/api/conversations/", "{}", "application/json", headers={csrf["header"]: token}
            )
            assert posted.status_code == status, posted.content

    def test_texts_cannot_end_the_block_that_they_are_in(self, client, plain, ann, monkeypatch):
        monkeypatch.setitem(TEXTS, "you", "</script><script>alert(1)</script>")

        assert given(shown(client))["texts"]["you"] == "</script><script>alert(1)</script>"

    def test_neither_page_nor_tag_has_inline_scripts_or_styles(self, client, plain, ann):
        for html in (shown(client), tag(client, "")):
            assert not re.search(r"<script(?![^>]*\bsrc=)(?![^>]*application/json)", html)
            assert not re.search(r"<style|\sstyle=|\son\w+=", html)


class TestParts:
    def test_the_memory_is_shown_as_the_settings_and_the_tag_have_it(self, client, plain, ann):
        assert 'id="memory"' in shown(client)
        plain.CHATMEMORY = {**plain.CHATMEMORY, "PAGE": {"MEMORY": False}}
        for html in (shown(client), tag(client, "")):
            assert 'id="memory"' not in html
            assert "memory.css" not in html
        assert 'id="memory"' in tag(client, "memory=True")

    def test_without_the_list_there_is_a_button_for_a_new_chat_and_no_views_to_switch(self, client, plain, ann):
        html = tag(client, "conversations=False memory=False")

        assert 'id="conversations"' not in html
        assert 'id="tabs"' not in html
        assert html.count("data-new") == 1

    def test_the_page_alone_has_the_conversation_in_its_address_and_a_heading(self, client, plain, ann):
        for html, is_page in ((shown(client), True), (tag(client, ""), False)):
            assert given(html)["isPage"] is is_page
            assert ("<h1" in html, 'id="skip"' in html, 'id="colors"' in html) == (is_page,) * 3

    def test_assistants_are_chosen_where_there_are_several(self, client, plain, ann):
        chat = {"ASSISTANT": ASSISTANT, "ASSISTANTS": {"fast_one": ASSISTANT, "sales": ASSISTANT}}
        assert 'id="assistant"' not in shown(client)
        plain.CHATMEMORY = {"CHAT": chat, "PAGE": {"ASSISTANTS": {"sales": "Sales & co"}}}

        [choice] = re.findall(r'id="assistant".*?</select>', shown(client), re.DOTALL)
        options = re.findall(r'<option value="(\w*)">(.*?)</option>', choice)

        assert options == [("", "Assistant"), ("fast_one", "Fast one"), ("sales", "Sales &amp; co")]

    def test_a_tag_may_be_for_one_assistant_and_its_conversations(self, client, plain, ann):
        plain.CHATMEMORY = {"CHAT": {"ASSISTANTS": {"support": ASSISTANT, "sales": ASSISTANT}}}

        html = tag(client, "assistant='sales'")

        assert 'id="assistant"' not in html
        assert (given(html)["assistant"], given(html)["filter"]) == ("sales", {"assistant": "sales"})
        with pytest.raises(ImproperlyConfigured, match="no assistant 'cooks'; it has 'support', 'sales'"):
            tag(client, "assistant='cooks'")

    def test_an_only_assistant_with_a_name_is_asked_by_it(self, client, plain, ann):
        plain.CHATMEMORY = {"CHAT": {"ASSISTANTS": {"support": ASSISTANT}}}

        assert (given(shown(client))["assistant"], given(shown(client))["filter"]) == ("support", {})

    def test_models_are_chosen_from_those_of_the_settings(self, client, plain, ann):
        assert 'id="model"' not in shown(client)
        plain.CHATMEMORY = {**plain.CHATMEMORY, "PAGE": {"MODELS": {"gpt-5": "Thorough", "gpt-5-mini": "Quick"}}}

        assert '<option value="gpt-5">Thorough</option><option value="gpt-5-mini">Quick</option>' in shown(client)

    def test_the_tokens_that_were_used_are_asked_for_only_where_they_are_shown(
        self, client, plain, ann, django_assert_num_queries
    ):
        with django_assert_num_queries(2):  # session and user
            tag(client, "conversations=False")

    def test_it_is_in_the_language_of_the_request(self, client, plain, ann):
        html = shown(client, **{"Accept-Language": "de"})

        assert given(html)["language"] == "de"
        assert given(html)["texts"]["new_chat"] == "Neues Gespräch"
        assert "Wobei kann ich helfen?" in html
        assert '<html lang="de">' in html

    def test_it_needs_the_request(self, plain):
        with pytest.raises(ImproperlyConfigured, match="needs the request"):
            Template("{% load chatmemory_page %}{% chat_widget %}").render(Context())


class TestSettings:
    @pytest.mark.parametrize(
        "page", [{}, {"BASE": "base.html", "MEMORY": False, "MODELS": {"a": translation.gettext_lazy("Chat")}}]
    )
    def test_right_values_are_not_reported(self, settings, page):
        settings.CHATMEMORY = {"PAGE": page}

        assert checks.check_page() == []

    def test_E091_the_settings_of_the_page_are_no_dict(self, settings):
        settings.CHATMEMORY = {"PAGE": []}

        assert [each.id for each in checks.check_page()] == ["chatmemory.E091"]

    @pytest.mark.parametrize("page", [{"BASE": None}, {"MEMORY": 1}, {"MODELS": ["gpt-5"]}, {"ASSISTANTS": {1: "One"}}])
    def test_E092_a_value_has_another_type(self, settings, page):
        settings.CHATMEMORY = {"PAGE": page}

        assert [each.id for each in checks.check_page()] == ["chatmemory.E092"]

    def test_W091_a_setting_of_the_page_is_unknown(self, settings):
        settings.CHATMEMORY = {"PAGE": {"BASES": "base.html"}}

        assert [each.id for each in checks.check_page()] == ["chatmemory.W091"]

    def test_the_page_extends_the_template_of_the_site(self, client, plain, ann, tmp_path):
        (tmp_path / "shop.html").write_text(
            "<title>{% block title %}{% endblock %}</title><nav>Shop</nav>{% block content %}{% endblock %}"
        )
        plain.TEMPLATES = [{**plain.TEMPLATES[0], "DIRS": [tmp_path, *plain.TEMPLATES[0]["DIRS"]]}]
        plain.CHATMEMORY = {**plain.CHATMEMORY, "PAGE": {"BASE": "shop.html"}}

        html = shown(client)

        assert html.strip().startswith("<title>Chat</title><nav>Shop</nav><chat-memory")
        assert 'id="colors"' not in html  # they are those of the site

    def test_its_blocks_are_replaced_by_a_template_of_the_same_name(self, client, plain, ann, tmp_path):
        (tmp_path / "chatmemory_page").mkdir()
        (tmp_path / "chatmemory_page/chat.html").write_text(
            '{% extends "chatmemory_page/chat.html" %}{% block brand %}<p>Shop</p>{% endblock %}'
            "{% block welcome %}<h3>Hello {{ user.username }}</h3>{% endblock %}"
        )
        plain.TEMPLATES = [{**plain.TEMPLATES[0], "DIRS": [tmp_path, *plain.TEMPLATES[0]["DIRS"]]}]

        html = shown(client)

        assert "<p>Shop</p>" in html
        assert "<h3>Hello ann</h3>" in html
        assert "What can I help you with?" not in html

    def test_every_variable_of_the_styles_is_on_the_page_about_them(self):
        from tests.acceptance.docs.pages import DOCS

        styles = (modules.FOLDER / "page.css").read_text() + (modules.FOLDER / "base.css").read_text()
        names = set(re.findall(r"--chatmemory-[\w-]+", styles))

        assert names == set(re.findall(r"--chatmemory-[\w-]+", (DOCS / "chat-page.md").read_text()))
        assert Page.defaults().keys() == {"BASE", "MEMORY", "ASSISTANTS", "MODELS"}
