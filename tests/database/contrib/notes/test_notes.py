"""Notes about users: their limits, also for two writers at once, and that they go with their owner, or not on hold."""

import json
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connections, transaction
from django.db.models import ProtectedError

from chatmemory_django.contrib.holds.models import LegalHold
from chatmemory_django.contrib.notes import keeping
from chatmemory_django.contrib.notes.keeping import NotesFullError, NotesOffError, change, drop, is_on, keep, switch
from chatmemory_django.contrib.notes.models import Note, Notebook
from chatmemory_django.messages import UserMessage
from chatmemory_django.models import stored_size
from chatmemory_django.operations import ImportLimits, JsonLinesError, check_lines, import_lines
from chatmemory_django.provider import get_chat_memory

pytestmark = pytest.mark.django_db

TEXT = "Is allergic to nuts"


def texts_of(owner: Any) -> list[str]:
    return [note.text for note in Note.objects.owned_by(owner)]


class TestKept:
    def test_a_note_has_a_number_that_is_never_used_again(self, ann):
        keep(ann, "one"), keep(ann, "two")
        drop(ann, 2)

        assert keep(ann, "three").number == 3
        assert list(Note.objects.owned_by(ann).values_list("number", flat=True)) == [1, 3]

    def test_each_user_counts_alone(self, ann, eve):
        keep(ann, "hers")

        assert keep(eve, "others").number == 1
        assert (texts_of(ann), texts_of(eve)) == (["hers"], ["others"])

    def test_a_text_is_kept_on_one_line(self, ann):
        assert keep(ann, "  likes \r\n tea\t\u2028and rain \x1f ").text == "likes tea and rain"

    @pytest.mark.parametrize(
        ("text", "what"),
        [
            ("", "blank"),
            (" \n\t ", "blank"),
            ("\u200b\u200d", "blank"),
            ("...", "blank"),
            ("x" * 301, "at most 300 characters, not 301"),
            ("a\0b", "control"),
            ("a\x1b[31mb", "control"),
            ("a\ud800b", "control"),
            ("abc\u202efed", "control"),
        ],
    )
    def test_what_is_no_note_is_refused(self, ann, text, what):
        note = keep(ann, TEXT)

        for do in (lambda: keep(ann, text), lambda: change(ann, note.number, text)):
            with pytest.raises(ValueError, match=what) as refused:
                do()
            assert text.strip() not in str(refused.value) or not text.strip()
        assert texts_of(ann) == [TEXT]

    # The first two have characters that are not seen, but change how others look.
    @pytest.mark.parametrize("text", ["👩\u200d🚀", "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "Ä" * 300, "1"])
    def test_what_people_write_is_kept_as_it_is(self, ann, text):
        keep(ann, text)

        assert texts_of(ann) == [text]

    def test_there_are_at_most_so_many(self, ann, settings):
        settings.CHATMEMORY = {"NOTES": {"MAX_NOTES": 2, "MAX_LENGTH": 5}}
        keep(ann, "one"), keep(ann, "two")

        with pytest.raises(NotesFullError, match="There are 2 notes already"):
            keep(ann, "three")
        with pytest.raises(ValueError, match="at most 5 characters, not 6"):
            keep(ann, "123456")

        assert texts_of(ann) == ["one", "two"]

    def test_a_change_leaves_the_number_and_is_dated(self, ann):
        note = keep(ann, TEXT)

        changed = change(ann, note.number, "Is allergic to soy")

        assert texts_of(ann) == ["Is allergic to soy"]
        assert changed.number == note.number
        assert changed.updated_at > note.updated_at

    def test_another_users_note_is_none(self, ann, eve):
        keep(ann, TEXT)

        with pytest.raises(Note.DoesNotExist):
            change(eve, 1, "changed")
        assert drop(eve, 1) == 0
        assert drop(eve) == 0

        assert texts_of(ann) == [TEXT]

    def test_who_switches_notes_off_keeps_those_that_are_there(self, ann, eve):
        keep(ann, TEXT)

        switch(ann, on=False)

        with pytest.raises(NotesOffError):
            keep(ann, "another")
        assert texts_of(ann) == [TEXT]
        assert list(Note.objects.owned_by(ann).in_use()) == []
        assert (is_on(ann), is_on(eve)) == (False, True)

        switch(ann, on=True)

        assert keep(ann, "another").text == "another"
        assert len(Note.objects.owned_by(ann).in_use()) == 2

    def test_the_text_is_in_no_name_of_a_note(self, ann):
        assert TEXT not in f"{keep(ann, TEXT)!r} {keep(ann, TEXT)}"

    def test_notes_count_in_what_is_stored_of_their_owner(self, ann, eve):
        before = stored_size(ann.pk)

        keep(ann, TEXT), keep(eve, "others")

        assert stored_size(ann.pk) - before == len(TEXT)


@pytest.mark.django_db(transaction=True)
def test_verbs_have_async_twins(ann):
    async def all_of_them() -> int:
        note = await keeping.akeep(ann, "one")
        await keeping.achange(ann, note.number, "two")
        await keeping.aswitch(ann, on=False)
        return await keeping.adrop(ann, note.number)

    assert async_to_sync(all_of_them)() == 1
    assert not is_on(ann)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_begun", [False, True], ids=["the first ones", "later ones"])
def test_two_at_once_never_exceed_the_limit(ann, settings, is_begun):
    settings.CHATMEMORY = {"NOTES": {"MAX_NOTES": 4}}
    if is_begun:
        keep(ann, "before")
    start = Barrier(4)

    def write(number: int) -> int:
        start.wait()
        kept = 0
        for turn in range(3):
            try:
                keep(ann, f"{number} {turn}")
                kept += 1
            except NotesFullError:
                pass
        connections.close_all()
        return kept

    with ThreadPoolExecutor(4) as threads:
        kept = sum(threads.map(write, range(4)))

    assert kept == 4 - is_begun
    assert list(Note.objects.owned_by(ann).values_list("number", flat=True)) == [1, 2, 3, 4]


@pytest.mark.django_db(transaction=True)
def test_a_transaction_that_has_read_before_does_not_exceed_it(ann, settings):
    settings.CHATMEMORY = {"NOTES": {"MAX_NOTES": 2}}
    keep(ann, "one")

    def write_another() -> None:
        keep(ann, "two")
        connections.close_all()

    if connections["default"].vendor == "sqlite":
        pytest.skip("A transaction holds its lock from the beginning, and another writer waits.")
    with transaction.atomic():
        assert texts_of(ann) == ["one"]
        with ThreadPoolExecutor(1) as threads:
            threads.submit(write_another).result()
        with pytest.raises(NotesFullError):
            keep(ann, "three")


def erase(*options: str) -> dict[str, Any]:
    out = StringIO()
    call_command("erase_chatmemory", "--user", "ann", *options, stdout=out, verbosity=0)
    receipt: dict[str, Any] = json.loads(out.getvalue())
    return receipt


class TestErased:
    @pytest.fixture(autouse=True)
    def notes(self, ann, eve):
        keep(ann, TEXT), keep(ann, "another"), keep(eve, "others")
        get_chat_memory("c", owner=ann).add(UserMessage("hi"))

    def test_notes_go_with_what_else_there_is_of_a_user(self, ann, eve):
        receipt = erase()

        assert receipt["others"] == {"chatmemory_notes.notebook": 1, "chatmemory_notes.note": 2}
        assert not Note.objects.filter(owner=ann).exists()
        assert not Notebook.objects.filter(owner=ann).exists()
        assert texts_of(eve) == ["others"]
        call_command("verify_chatmemory", "--user", "ann", stdout=StringIO())

    def test_before_it_they_are_found(self):
        out = StringIO()

        with pytest.raises(CommandError, match="Something is left"):
            call_command("verify_chatmemory", "--user", "ann", stdout=out)

        assert "chatmemory_notes_note: rows of the user: 2" in out.getvalue()

    def test_a_dry_run_counts_them(self, ann):
        assert erase("--dry-run")["others"] == {"chatmemory_notes.notebook": 1, "chatmemory_notes.note": 2}
        assert len(texts_of(ann)) == 2

    def test_a_single_conversation_leaves_them(self, ann):
        call_command("erase_chatmemory", "--memory-id", "c", stdout=StringIO(), verbosity=0)

        assert len(texts_of(ann)) == 2

    def test_they_go_with_the_user(self, ann, eve):
        ann.delete()

        assert [note.owner_id for note in Note.objects.all()] == [eve.pk]
        assert Notebook.objects.get().owner_id == eve.pk


class TestHeld:
    @pytest.fixture
    def hold(self, ann):
        keep(ann, TEXT)
        return LegalHold.objects.create(owner=ann, reason="Case 7", placed_by="eva")

    WAYS = {  # noqa: RUF012
        "changed": lambda owner: change(owner, 1, "gone"),
        "dropped": lambda owner: drop(owner, 1),
        "dropped with all": drop,
        "deleted": lambda owner: Note.objects.get().delete(),
        "deleted by a QuerySet": lambda owner: Note.objects.all().delete(),
        "deleted with its owner": lambda owner: owner.delete(),
    }

    @pytest.mark.parametrize("way", WAYS)
    def test_nothing_is_erased_until_the_hold_ends(self, ann, hold, eve, way):
        with pytest.raises(ProtectedError), transaction.atomic():
            self.WAYS[way](ann)

        assert texts_of(ann) == [TEXT]

        hold.end(eve)
        self.WAYS[way](ann)

        assert TEXT not in [note.text for note in Note.objects.all()]

    def test_the_command_that_erases_fails(self, ann, hold):
        with pytest.raises(CommandError, match="a hold forbids it"):
            erase()

        assert texts_of(ann) == [TEXT]

    def test_others_are_not_held(self, hold, eve):
        keep(eve, "others")

        assert drop(eve) == 1

    def test_notes_may_be_added(self, ann, hold):
        keep(ann, "another")

        assert len(texts_of(ann)) == 2


class TestExported:
    @pytest.fixture(autouse=True)
    def notes(self, ann, eve):
        keep(ann, TEXT), keep(ann, "another"), keep(eve, "others")
        get_chat_memory("c", owner=ann).add(UserMessage("hi"))
        switch(ann, on=False)

    @pytest.fixture
    def lines(self, tmp_path) -> Path:
        file = tmp_path / "ann.jsonl"
        call_command("export_chatmemory", "--user", "ann", "--output", str(file), verbosity=0)
        return file

    def test_an_export_of_a_user_has_their_notes_and_can_be_imported_again(self, ann, lines):
        erase()
        assert texts_of(ann) == []

        for _ in range(2):
            call_command(
                "import_chatmemory", str(lines), "--user", "ann", "--skip-existing", stdout=StringIO(), verbosity=0
            )

        assert sorted(texts_of(ann)) == [TEXT, "another"]
        assert not is_on(ann)
        assert "others" not in lines.read_text()

    def test_their_order_and_their_moments_are_kept(self, ann, lines):
        def shown():
            return list(Note.objects.owned_by(ann).values_list("text", "created_at", "updated_at"))

        before = shown()
        erase()

        call_command("import_chatmemory", str(lines), "--user", "ann", stdout=StringIO(), verbosity=0)

        assert shown() == before
        assert [text for text, *_ in before] == [TEXT, "another"]

    def test_another_export_has_none(self, tmp_path):
        out = StringIO()

        call_command("export_chatmemory", "--memory-id", "c", stdout=out, verbosity=0)

        assert "of_owner" not in out.getvalue()

    @pytest.mark.parametrize("form", ["text", "html"])
    def test_people_read_them(self, ann, form):
        switch(ann, on=True)
        keep(ann, "<b>bold</b>")
        out = StringIO()

        call_command("export_chatmemory", "--user", "ann", "--format", form, stdout=out, verbosity=0)

        assert TEXT in out.getvalue()
        assert ("<b>bold" in out.getvalue()) is (form == "text")
        assert "others" not in out.getvalue()

    @pytest.mark.parametrize(
        ("line", "what"),
        [
            ({"record": "of_owner", "name": "chatmemory_notes.note", "content": {"text": " "}}, "must not be blank"),
            ({"record": "of_owner", "name": "chatmemory_notes.note", "content": {}}, "missing required field `text`"),
            (
                {"record": "of_owner", "name": "chatmemory_notes.note", "content": {"text": "a", "updated_at": "2026"}},
                "Invalid RFC3339 encoded datetime",
            ),
            (
                {
                    "record": "of_owner",
                    "name": "chatmemory_notes.note",
                    "content": {"text": "a", "created_at": "0001-01-01T00:00:00+00:00"},
                },
                "must be between the years",
            ),
            ({"record": "of_owner", "name": "chatmemory_notes.notebook", "content": {"is_on": 1}}, "Expected `bool`"),
            ({"record": "of_owner", "name": "auth.user", "content": {"is_superuser": True}}, "does not have"),
        ],
    )
    def test_what_is_no_note_is_refused_by_its_line(self, ann, line, what):
        with pytest.raises(JsonLinesError, match=f"Line 1: .*{what}"):
            import_lines([json.dumps(line)], ann)

        assert len(texts_of(ann)) == 2

    def test_notes_without_a_user_are_refused(self, lines):
        with pytest.raises(JsonLinesError, match="name the owner"):
            import_lines([each for each in lines.read_text().splitlines() if "of_owner" in each])

    def test_rest_imports_none(self, ann, lines):
        with pytest.raises(JsonLinesError, match="by import_chatmemory alone"):
            check_lines(lines.read_text().splitlines(), ImportLimits())
