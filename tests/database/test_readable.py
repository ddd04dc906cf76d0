"""Exports for people: as plain text, and as a page of HTML."""

import datetime
import re

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone, translation

from chatmemory_django.db.moments import to_moment
from chatmemory_django.messages import (
    AiMessage,
    CustomMessage,
    Image,
    ImageContent,
    PdfFile,
    PdfFileContent,
    SystemMessage,
    TextContent,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation, Message
from chatmemory_django.operations import export, one_by_one
from chatmemory_django.provider import get_chat_memory

pytestmark = pytest.mark.django_db

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
FORMS = pytest.mark.parametrize("form", ["text", "html"])


def exported(form: str, **condition) -> str:
    return "".join(export(Conversation.objects.filter(**condition), form=form))


@pytest.fixture
def talk():
    memory = get_chat_memory("order 7", owner=User.objects.create_user("ann"))
    call = ToolExecutionRequest(id="1", name="find_parcel", arguments='{"order": 7}')
    memory.add(
        SystemMessage("Be brief."),
        UserMessage([TextContent("Where is it?"), ImageContent(Image(base64_data=PIXEL))], name="Ann Smith"),
        AiMessage("I look.", "Which order?", [call]),
        ToolExecutionResultMessage("1", "find_parcel", "unknown order", is_error=True),
        UserMessage([PdfFileContent(PdfFile(url="https://example.com/a.pdf"))]),
        CustomMessage({"any": "json"}),
    )
    Message.objects.update(created_at=to_moment(datetime.datetime(2026, 11, 21, 9, 30, tzinfo=datetime.UTC)))
    Conversation.objects.update(title="A parcel")


def test_the_text_has_names_times_and_files(talk):
    text = exported("text")

    assert text.startswith("A parcel\n========\nMemory id: order 7\nOwner: ann\nStarted: ")
    assert "#1 System, 2026-11-21 09:30:00 UTC\n    Be brief.\n" in text
    assert "#2 Ann Smith, 2026-11-21 09:30:00 UTC\n    Where is it?\n  Image:\n    image/png, 1 KiB\n" in text
    assert '  Thinking:\n    Which order?\n    I look.\n  Calls find_parcel:\n    {"order": 7}\n' in text
    assert "#4 Tool result find_parcel, 2026-11-21 09:30:00 UTC (failed)\n    unknown order\n" in text
    assert "#5 ann, 2026-11-21 09:30:00 UTC\n  PDF document:\n    https://example.com/a.pdf\n" in text
    assert "Messages: 6\n" in text


def test_the_page_has_the_same(talk):
    html = exported("html")

    assert html.count("<!DOCTYPE html>") == html.count("</html>") == 1
    assert '<h1 dir="auto">A parcel</h1>' in html
    assert re.findall(r"<h2>#(\d) <bdi>(.*?)</bdi>", html) == [
        ("1", "System"),
        ("2", "Ann Smith"),
        ("3", "AI"),
        ("4", "Tool result find_parcel"),
        ("5", "ann"),
        ("6", "Custom"),
    ]
    assert '<time datetime="2026-11-21T09:30:00+00:00">2026-11-21 09:30:00 UTC</time>' in html
    assert "&quot;order&quot;: 7" in html


def test_the_language_and_the_time_zone_are_those_of_the_call(talk):
    with translation.override("de"), timezone.override("Europe/Berlin"):
        chunks = export(Conversation.objects.all(), form="html")

    html = "".join(chunks)

    assert '<html lang="de">' in html
    assert "<bdi>Tool-Ergebnis find_parcel</bdi>" in html
    assert "2026-11-21 10:30:00 CET" in html


def test_hostile_texts_are_harmless():
    evil = "<script>alert(1)</script>\u202e\x1b[2J"
    memory = get_chat_memory("<b>")
    call = ToolExecutionRequest(id="1", name=evil, arguments=evil)
    memory.add(UserMessage(evil, name=f"{evil}\nAnn"), AiMessage(evil, evil, [call]))
    Conversation.objects.update(title=f"{evil}\nOwner: eve")

    html, text = exported("html"), exported("text")

    assert "<script" not in html
    assert "<b>" not in html
    assert "default-src 'none'" in html
    for document in (html, text):
        assert "\u202e" not in document
        assert "\x1b" not in document
    assert "\nOwner: eve" not in text


def test_no_text_can_pretend_to_be_another_message():
    get_chat_memory("a").add(UserMessage("Hi\n\n#2 AI, 2026-11-21 09:30:00 UTC\r    I agree.\u2028#3 User"))

    lines = exported("text").splitlines()

    assert [line[:2] for line in lines if line.startswith("#")] == ["#1"]


@FORMS
def test_removed_messages_are_absent_and_other_branches_are_marked(form):
    memory = get_chat_memory("a")
    memory.add(UserMessage("first question"), AiMessage("first answer"))
    memory.rewind(1)
    memory.add(AiMessage("second answer"), UserMessage("a secret"))
    memory.remove(4)

    document = exported(form)

    assert "a secret" not in document
    assert "second answer" in document
    assert document.index("on another branch") < document.index("first answer")
    assert document.count("on another branch") == 1


@FORMS
def test_damaged_messages_are_marked_as_unreadable(form):
    get_chat_memory("a").add(UserMessage("Hello", name="x"))
    Message.objects.update(payload="{")

    assert "unreadable" in exported(form)


@FORMS
def test_many_conversations_are_one_document_without_what_was_erased(form):
    for number in range(3):
        get_chat_memory(f"talk {number}").add(UserMessage(f"Question {number}"))
    chunks = export(Conversation.objects.all(), form=form)
    Conversation.objects.filter(memory_id="talk 1").delete()

    document = "".join(chunks)

    assert re.findall(r"Question (\d)", document) == ["0", "2"]


def test_an_owner_is_read_once():
    ann = User.objects.create_user("ann")
    for memory_id in "abc":
        get_chat_memory(memory_id, owner=ann).add(UserMessage("Hello"))

    with CaptureQueriesContext(connection) as queries:
        assert exported("text").count("Owner: ann\n") == 3

    users = connection.ops.quote_name(User._meta.db_table)
    assert len([each for each in queries if f"FROM {users}" in each["sql"]]) == 1


@FORMS
def test_a_long_conversation_is_read_and_sent_in_parts(form, monkeypatch):
    monkeypatch.setattr(one_by_one, "PAGE", 50)
    get_chat_memory("a").add(*(UserMessage(f"{number} " + "x" * 1000) for number in range(200)))

    chunks = list(export(Conversation.objects.all(), form=form))

    assert len(chunks) > 3
    assert max(map(len, chunks)) < 70_000


def test_an_unknown_form_is_refused():
    with pytest.raises(ValueError, match="form is 'pdf'; it must be one of jsonl, text, html"):
        export(Conversation.objects.all(), form="pdf")


def test_the_command_writes_it(talk, tmp_path):
    call_command("export_chatmemory", format="html", output=tmp_path / "talk.html", verbosity=0)

    written = (tmp_path / "talk.html").read_text()
    assert written == exported("html")
