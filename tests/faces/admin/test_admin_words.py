"""What the admin calls things: titles, the log, the order of a menu, columns in German."""

import re
from pathlib import Path

import pytest

import chatmemory_django
from chatmemory_django.chat.models import ModelCall
from chatmemory_django.messages import AiMessage, ToolExecutionRequest, UserMessage
from tests.faces.admin.admin_site import EVERYTHING, conversation, page, post_action, staff

pytestmark = pytest.mark.django_db


@pytest.fixture
def support(client):
    client.force_login(staff(*EVERYTHING, "view_modelcall"))
    return client


@pytest.fixture
def talk():
    calls = AiMessage(tool_execution_requests=[ToolExecutionRequest("c1", "look", "{}")])
    return conversation(UserMessage("hi"), calls, memory_id="shop-1", title="Parcels")


def test_the_page_of_an_action_on_several_conversations_has_a_title(support, talk):
    html = post_action(support, "clear_memory", [talk]).content.decode()

    assert "<h1>Conversations</h1>" in html
    crumbs = re.search(r'<(?:ol|div) class="breadcrumbs">.*?</(?:ol|div)>', html, re.DOTALL).group()
    words = re.sub(r"<[^>]+>", " ", crumbs).replace("&rsaquo;", " ").split()  # until Django 6.1, between two of them
    assert words[-4:] == ["memory", "Conversations", "Clear", "memory"]


def test_an_empty_log_has_the_reason(support, talk):
    html = support.get(page("history", talk.pk)).content.decode()

    assert "Nothing is logged of this conversation" in html
    assert "added via this admin site" not in html
    support.post(page("clear", talk.pk), {"confirmed": "clear"})
    assert "Cleared the memory" in support.get(page("history", talk.pk)).content.decode()


def test_what_destroys_comes_last_in_the_menu(support, talk):
    menu = support.get(page("change", talk.pk)).content.decode().partition('class="cm-menu"')[2].partition("</ul>")[0]

    names = [re.sub(r"<[^>]+>", "", each).strip() for each in re.findall(r"<a .*?</a>", menu)]
    assert names == ["Recount tokens", "OpenAI JSON", "Log", "Clear memory", "Erase"]


def test_calls_are_a_noun_in_a_table_and_a_verb_in_a_message(support, talk, settings):
    settings.LANGUAGE_CODE = "de"
    ModelCall.objects.create(purpose="answer", outcome="completed", input_tokens=1)

    assert ">Aufrufe</th>" in support.get("/admin/chatmemory_chat/modelcall/usage/").content.decode()
    assert "Ruft auf: <code>" in support.get(page("change", talk.pk)).content.decode()


def test_german_has_one_word_for_a_conversation():
    german = (Path(chatmemory_django.__file__).parent / "locale/de/LC_MESSAGES/django.po").read_text()
    words = re.findall(r'^msgstr.*?"(.*)"$', german, re.MULTILINE)

    assert [
        each
        for each in words
        if re.search(
            r"\b(Unterhaltung|Konversation|diese[rsnm]? Chats?|Archivierte Chats|Vorübergehender Chat)\b", each
        )
    ] == []


def test_buttons_have_the_width_of_their_words_in_themes_whose_buttons_have_a_fixed_one():
    css = (Path(chatmemory_django.__file__).parent / "static/chatmemory/admin.css").read_text()
    for selector in (r"\.cm a\.cm-button, \.cm button\.cm-button", r"\.cm-typed button"):
        rule = re.search(rf"^{selector} {{(.*?)}}", css, re.MULTILINE | re.DOTALL).group(1)
        assert {"width: auto", "height: auto", "overflow: visible"} <= {each.strip() for each in rule.split(";")}


def test_a_table_that_scrolls_keeps_its_words_whole():
    css = (Path(chatmemory_django.__file__).parent / "static/chatmemory/admin.css").read_text()

    assert ".cm-scroll .cm-shares bdi { overflow-wrap: normal; }" in css
