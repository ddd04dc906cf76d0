"""What the other tests look for texts with finds them: in each form, in each table, and in indexes of deleted rows."""

import base64
import json
import random
from string import ascii_lowercase

import pytest
from django.contrib.sessions.models import Session
from django.db import connection
from django.utils import timezone

from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation, Message, finding
from chatmemory_django.provider import get_chat_memory
from tests.leftovers import leftovers

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def text():
    """Return a text of its own for each test: MariaDB keeps the words of earlier ones."""
    return f"Über Zaquixo {''.join(random.choices(ascii_lowercase, k=20))} 😀 8731"


def test_nothing_is_found_where_nothing_is(text):
    get_chat_memory("c").add(UserMessage("Something else."))

    assert leftovers(text) == []


FORMS = {
    "as it is": lambda text: f"before {text} after",
    "in capitals": lambda text: text.upper(),
    "JSON": lambda text: json.dumps({"key": text}),
    "JSON in JSON": lambda text: json.dumps({"key": json.dumps([text])}),
    "JSON in Unicode": lambda text: json.dumps([text], ensure_ascii=False),
    "Base64": lambda text: base64.b64encode(text.encode()).decode(),
    "Base64 after a byte": lambda text: base64.b64encode(b"x" + text.encode()).decode(),
    "Base64 after two bytes": lambda text: base64.b64encode(b"xx" + text.encode()).decode(),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_text_is_found_in_each_form(form, text):
    Session.objects.create(session_key="s", session_data=FORMS[form](text), expire_date=timezone.now())

    assert "default: django_session.session_data: 1" in leftovers(text)


def test_values_of_any_type_are_found(text):
    Conversation.objects.create(memory_id="c", title=text, metadata={"deep": [{"in": text}]})

    assert leftovers(text) == [
        "default: chatmemory_conversation.metadata: 1",
        "default: chatmemory_conversation.title: 1",
    ]


def test_a_table_that_no_model_has_is_searched(text):
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE unheard_of (content TEXT)")
        try:
            cursor.execute("INSERT INTO unheard_of VALUES (%s)", [text])

            assert leftovers(text) == ["default: unheard_of.content: 1"]
        finally:
            cursor.execute("DROP TABLE unheard_of")


@pytest.mark.skipif(finding.index is None, reason="It is of the site with an index.")
def test_a_text_is_found_in_an_index(text):
    get_chat_memory("c").add(UserMessage(text))

    places = leftovers(text)

    assert any(place.startswith("default: chatmemory_message.text") for place in places)
    if connection.vendor != "postgresql":  # it shows no one what is in an index
        assert any("chatmemory_search (FTS5)" in place or "INNODB_FT" in place for place in places)


@pytest.mark.skipif(connection.vendor != "sqlite", reason="It is of SQLite.")
def test_a_text_that_was_deleted_is_found_in_the_data_of_an_index(text):
    with connection.cursor() as cursor:
        cursor.execute("CREATE VIRTUAL TABLE words USING fts5(text, content='', tokenize='trigram')")
        try:
            for number in range(500):
                cursor.execute("INSERT INTO words (rowid, text) VALUES (%s, %s)", [number, f"Another one, {number}."])
            cursor.execute("INSERT INTO words (rowid, text) VALUES (1000, %s)", [text])
            assert leftovers(text) == ["default: words (FTS5): 1"]

            cursor.execute("INSERT INTO words (words, rowid, text) VALUES ('delete', 1000, %s)", [text])
            assert leftovers(text) == ["default: words (FTS5): 1"]

            cursor.execute("INSERT INTO words (words) VALUES ('optimize')")
            assert leftovers(text) == []
            assert leftovers("Another one, 499.") == ["default: words (FTS5): 1"]
        finally:
            cursor.execute("DROP TABLE words")
    assert not Message.objects.exists()
