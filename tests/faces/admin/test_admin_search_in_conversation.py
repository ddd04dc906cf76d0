"""The search within a conversation: hits, and links from each to its message."""

import re

import pytest

from chatmemory_django.admin import search
from chatmemory_django.core.excerpts import MAX_EXCERPTED
from chatmemory_django.messages import AiMessage, UserMessage
from chatmemory_django.models import Message
from tests.faces.admin.admin_site import EVERYTHING, conversation, long_conversation, page, shown, staff
from tests.faces.admin.test_admin_hostile import BREAK_OUT, assert_harmless

pytestmark = pytest.mark.django_db


@pytest.fixture
def reader(client):
    client.force_login(staff(*EVERYTHING))
    return client


def places(html: str) -> list[str]:
    return re.findall(r'class="cm-kind" href="([^"]+)"', html)


def numbers(html: str) -> list[int]:
    return [int(place.partition("#m-")[2]) for place in places(html)]


def test_the_newest_come_first_with_the_hits_marked(reader):
    talk = conversation(UserMessage("Where is my parcel?"), AiMessage("In Kiel"), UserMessage("A parcel, a PARCEL!"))

    html = shown(reader, talk, q="parcel")

    assert numbers(html) == [3, 1]
    assert "A <mark>parcel</mark>, a <mark>PARCEL</mark>!" in html
    assert "In Kiel" not in html
    assert 'value="parcel"' in html


@pytest.mark.slow
def test_each_hit_links_to_its_message(reader):
    talk = long_conversation(200)

    for place in places(shown(reader, talk, q="number 7")):
        sequence = place.partition("#m-")[2]
        html = reader.get(page("change", talk.pk) + place.partition("#")[0]).content.decode()
        assert f'id="m-{sequence}"' in html


def test_evicted_messages_are_found_but_not_compactions(reader):
    talk = conversation(*[UserMessage(f"parcel {number}") for number in range(5)])
    Message.objects.filter(sequence=2).update(in_history=False, on_path=False)

    assert numbers(shown(reader, talk, q="parcel")) == [5, 4, 3, 1]


def test_hits_are_paginated(reader):
    talk = long_conversation(2 * search.HITS + 3)

    seen, html = [], shown(reader, talk, q="message")
    while True:
        seen += numbers(html)
        older = re.search(r'href="\?q=message&amp;before=(\d+)" rel="next"', html)
        if older is None:
            break
        html = shown(reader, talk, q="message", before=older[1])

    assert seen == list(range(2 * search.HITS + 3, 0, -1))


def test_a_page_searches_a_limited_number_of_messages_and_shows_how_far_it_got(reader, monkeypatch):
    monkeypatch.setattr(search, "SEARCHED", 30)
    talk = long_conversation(100)

    html = shown(reader, talk, q='"number 7"')
    assert numbers(html) == [79, 78, 77, 76, 75, 74, 73, 72, 71]
    assert "before=71" in html
    html = shown(reader, talk, q='"number 7"', before=71)
    assert numbers(html) == [70]
    assert "Older matches" in html
    html = shown(reader, talk, q='"number 7"', before=41)
    assert "Nothing was found in message #11 or later." in html
    html = shown(reader, talk, q='"number 7"', before=11)
    assert numbers(html) == [7]
    assert "Older matches" not in html


def test_an_empty_result_is_reported(reader):
    assert "Nothing was found." in shown(reader, long_conversation(3), q="zebra")


@pytest.mark.parametrize("wanted", ["", "   ", "\n"])
def test_a_blank_query_is_not_a_search(reader, wanted):
    assert "<article" in shown(reader, long_conversation(3), q=wanted)


@pytest.mark.parametrize("wanted", ["a\0b", "%", "_", "\\", "'; --", BREAK_OUT, "\u202e", "x" * 100_000, "\ufffd"])
def test_any_text_can_be_searched(reader, wanted):
    html = shown(reader, long_conversation(3), q=wanted)

    assert "Nothing was found." in html
    assert_harmless(html)


def test_hits_are_escaped(reader):
    talk = conversation(UserMessage(f"parcel {BREAK_OUT} \u202eevil <script>alert(1)</script>"))

    html = shown(reader, talk, q="<script>")

    assert_harmless(html)
    assert "<mark>&lt;script&gt;</mark>" in html
    assert "⟦U+202E⟧" in html


def test_searching_requires_permission_to_read(client):
    client.force_login(staff("view_conversation"))
    talk = conversation(UserMessage("parcel"))

    html = shown(client, talk, q="parcel")

    assert 'name="q"' not in html
    assert _without_token(html) == _without_token(shown(client, talk, q="zebra"))
    assert "<article" in html


@pytest.mark.parametrize("length", [60, 3000])
def test_a_search_takes_8_statements_at_any_length(reader, length, django_assert_num_queries):
    talk = long_conversation(length)

    # The session, the user, two for permissions; the conversation, the hits, their excerpts.
    with django_assert_num_queries(8):
        reader.get(page("change", talk.pk), {"q": "number"})


def test_a_hit_is_shown_wherever_it_is_in_a_long_message(reader):
    text = "x" * (MAX_EXCERPTED + 900)
    talk = conversation(UserMessage(f"{text} parcel"), UserMessage(f"parcel {text}"))

    html = shown(reader, talk, q="parcel")

    assert numbers(html) == [2, 1]
    assert html.count("<mark>parcel</mark>") == 2


def _without_token(html: str) -> str:
    return re.sub(r'name="csrfmiddlewaretoken" value="\w+"', "", html)
