"""The format of JSON lines: versions, what may be left out, and users by their names."""

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chatmemory_django.chat.costs.tables import CallSum, ModelCall
from chatmemory_django.contrib.notes.models import Note, Notebook
from chatmemory_django.messages import AiMessage, SystemMessage, UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.models.copies import EVERYBODY
from chatmemory_django.operations.jsonl import ImportLimits, JsonLinesError, check_lines, export_lines, import_lines
from chatmemory_django.provider import get_chat_memory
from tests.database.test_operations import everything_is_whole

pytestmark = pytest.mark.django_db

HELLO = {"record": "message", "message": {"type": "USER", "contents": [{"type": "TEXT", "text": "Hello"}]}}
HI = {"record": "message", "message": {"type": "AI", "text": "Hi"}}
CALL = {"purpose": "answer", "outcome": "completed", "created_at": "2026-11-27T08:00:00Z"}
DAY = {"begin": "2026-11-27", "purpose": "answer", "outcome": "completed", "run": 1} | dict.fromkeys(
    ("calls", "failed", "uncounted", "unpriced", "input", "cached_input", "cache_write", "cache_write_1h"), 1
)
DAY |= {"output": 1, "reasoning": 1, "cost": "0.5"}
RECORDS = {"chatmemory_chat.modelcall": CALL, "chatmemory_chat.callsum": DAY}
NOTES = {"chatmemory_notes.notebook": {"is_on": True, "last_number": 3}, "chatmemory_notes.note": {"text": "Likes tea"}}


def head(**fields: object) -> dict[str, Any]:
    return {"record": "conversation", "version": 1, "memory_id": "a", **fields}


def message(type: str, text: str, **fields: object) -> dict[str, Any]:
    return {"record": "message", "message": {"type": type, "text": text}, **fields}


def of_owner(name: str, content: dict[str, Any], **fields: object) -> dict[str, Any]:
    return {"record": "of_owner", "version": 1, "name": name, "content": content, **fields}


def as_lines(*lines: object) -> list[str]:
    return [json.dumps(line) for line in lines]


def refused(*lines: object, **options: Any) -> str:
    with pytest.raises(JsonLinesError) as caught:
        import_lines(as_lines(*lines), **options)
    return str(caught.value)


class TestByHand:
    def test_three_lines_are_a_conversation(self):
        assert import_lines(as_lines(head(), HELLO, HI)) == 1

        assert get_chat_memory("a").messages() == [UserMessage("Hello"), AiMessage("Hi")]
        assert everything_is_whole() == {"a": 2}

    def test_the_next_message_follows_them(self):
        import_lines(as_lines(head(), HELLO, HI))

        get_chat_memory("a").add(UserMessage("Bye"))

        assert [row.sequence for row in Conversation.objects.get().history()] == [1, 2, 3]
        assert everything_is_whole() == {"a": 3}

    def test_a_system_message_is_sent_first_unless_it_is_superseded(self):
        old, new = message("SYSTEM", "Be brief.", superseded=True), message("SYSTEM", "Be kind.")

        import_lines(as_lines(head(), old, HELLO, new, HI))

        assert get_chat_memory("a").messages() == [SystemMessage("Be kind."), UserMessage("Hello"), AiMessage("Hi")]
        assert everything_is_whole() == {"a": 4}

    def test_two_system_messages_in_the_memory_are_refused(self):
        error = refused(head(), message("SYSTEM", "Be brief."), message("SYSTEM", "Be kind."))

        assert error == "Line 3: it is another system message of the memory; set superseded in all but the last one."

    def test_moments_are_those_of_the_messages_before(self):
        first, last = "2026-11-20T08:00:00Z", "2026-11-27T08:00:00Z"

        import_lines(as_lines(head(), HELLO | {"created_at": first}, HI, HELLO | {"created_at": last}, HI))

        conversation = Conversation.objects.get()
        assert (conversation.created_at, conversation.updated_at) == (
            datetime(2026, 11, 20, 8, tzinfo=UTC),
            datetime(2026, 11, 27, 8, tzinfo=UTC),
        )
        moments = [row.created_at.day for row in conversation.history()]
        assert moments == [20, 20, 27, 27]

    def test_without_any_it_is_of_now(self):
        import_lines(as_lines(head(), HELLO))

        assert abs(Conversation.objects.get().created_at - datetime.now(UTC)).total_seconds() < 60

    def test_numbers_may_be_left_out_from_one_on(self):
        import_lines(as_lines(head(), HELLO | {"sequence": 7}, HI))

        assert [row.sequence for row in Conversation.objects.get().history()] == [7, 8]
        assert everything_is_whole() == {"a": 2}

    def test_the_memory_may_begin_later(self):
        import_lines(as_lines(head(window_start=2), HELLO, HI))

        assert get_chat_memory("a").messages() == [AiMessage("Hi")]
        assert everything_is_whole() == {"a": 2}

    def test_a_conversation_without_messages_begins_now(self):
        import_lines(as_lines(head()))

        assert (Conversation.objects.get().next_sequence, everything_is_whole()) == (1, {"a": 0})

    @pytest.mark.parametrize("encoding", [None, "utf-8"])
    def test_a_byte_order_mark_is_no_part_of_it(self, encoding: str | None):
        first, *others = as_lines(head(), HELLO)
        marked = f"\ufeff{first}"

        assert import_lines([marked if encoding is None else marked.encode(encoding), *others]) == 1

        assert everything_is_whole() == {"a": 1}

    @given(
        st.lists(
            st.sampled_from([HELLO, HI, message("SYSTEM", "Be kind.")]).flatmap(
                lambda line: st.fixed_dictionaries(
                    {},
                    optional={
                        "sequence": st.integers(1, 9),
                        "superseded": st.booleans(),
                        "in_history": st.booleans(),
                        "parent_sequence": st.integers(0, 9),
                        "is_pinned": st.booleans(),
                        "created_at": st.just("2026-11-27T08:00:00Z"),
                    },
                ).map(lambda more: line | more)
            ),
            max_size=5,
        ),
        st.fixed_dictionaries(
            {},
            optional={
                "next_sequence": st.integers(1, 12),
                "window_start": st.integers(1, 9),
                "pinned_sequence": st.none() | st.integers(1, 9),
                "total_messages": st.integers(0, 12),
                "parent_sequence": st.integers(0, 9),
            },
        ),
    )
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_whatever_is_left_out_it_is_refused_or_whole(self, messages: list[dict], fields: dict):
        lines = as_lines(head(**fields), *messages)
        try:
            check_lines(lines)
        except JsonLinesError:
            return
        import_lines(lines)
        everything_is_whole()
        Conversation.objects.all().delete()


class TestVersions:
    def test_every_line_of_a_conversation_has_one(self):
        import_lines(as_lines(head(), HELLO))

        first, second = map(json.loads, export_lines(Conversation.objects.all()))

        assert (first["version"], "version" in second) == (1, False)

    @pytest.mark.parametrize("line", [head(version=2), head(version=2, mood="good"), of_owner("x", {}, version=2)])
    def test_another_one_is_refused_by_its_number(self, line: dict):
        assert refused(line) == (
            "Line 1: version is 2, but must be 1, the version that this release of chatmemory_django reads; import the "
            "file with the release that wrote it, or a later one."
        )

    @pytest.mark.parametrize("version", ["1", 1.5, True, []])
    def test_it_is_a_number(self, version: object):
        assert refused(head(version=version)).startswith("Line 1: Expected `int | null`, got ")

    def test_unknown_fields_are_refused_by_their_names(self):
        assert refused(head(mood="good")) == "Line 1: Object contains unknown field `mood`."
        assert refused(head(), HELLO | {"mood": "good"}) == "Line 2: Object contains unknown field `mood`."

    @pytest.mark.parametrize(
        "lines",
        [
            [head(said_messages=1), HELLO],
            [head(), HELLO | {"token_counter": "words"}],
            [head(), HELLO | {"client_id": "1"}],
        ],
    )
    def test_names_of_before_there_were_versions_are_unknown_since_then(self, lines: list[dict]):
        assert "unknown field" in refused(*lines)


class TestUsers:
    @pytest.fixture
    def anna(self) -> User:
        return User.objects.create_user("anna")

    def test_a_line_names_the_owner(self, anna: User):
        import_lines(as_lines(head(owner="anna"), HELLO), named=User.objects.get_by_natural_key)

        assert Conversation.objects.get().owner == anna

    def test_without_a_function_it_is_nobodys(self, anna: User):
        import_lines(as_lines(head(owner="anna"), HELLO))

        assert Conversation.objects.get().owner is None

    def test_the_owner_of_all_comes_first(self, anna: User):
        import_lines(as_lines(head(owner="ben"), HELLO), anna)

        assert Conversation.objects.get().owner == anna

    def test_an_author_is_the_user_with_that_name_here(self, anna: User):
        words = {"type": "AI", "text": "Hi", "attributes": {"author": {"id": "99", "name": "Anna"}}}

        import_lines(as_lines(head(), HI | {"message": words, "author": "anna"}), named=User.objects.get_by_natural_key)

        [message] = get_chat_memory("a").messages()
        assert message.attributes["author"] == {"id": str(anna.pk), "name": "Anna"}

    def test_an_author_of_what_nobody_wrote_is_refused(self, anna: User):
        error = refused(head(), HI | {"author": "anna"}, named=User.objects.get_by_natural_key)

        assert error == "Line 2: author is given, but the message has no id in the author of its attributes."

    @pytest.mark.parametrize("name", ["anna", "nobody"])
    def test_a_person_without_waiting_is_refused(self, anna: User, name: str):
        error = refused(head(person=name), HELLO, named=User.objects.get_by_natural_key)

        assert error == "Line 1: person is given, but waits_for_person is not true."

    def test_exports_name_nobody_unless_they_are_asked_to(self, anna: User):
        import_lines(as_lines(head(), HELLO), anna)
        everyone = Conversation.objects.all()

        assert json.loads(next(export_lines(everyone)))["owner"] == ""
        assert json.loads(next(export_lines(everyone, names=True)))["owner"] == "anna"

    def test_the_name_of_a_user_is_looked_up_once(self, anna: User):
        import_lines(as_lines(*(line for number in range(5) for line in (head(memory_id=f"{number}"), HELLO))), anna)
        everyone = Conversation.objects.all()
        with CaptureQueriesContext(connection) as without:
            list(export_lines(everyone))

        with CaptureQueriesContext(connection) as queries:
            list(export_lines(everyone, names=True))

        assert len(queries) == len(without) + 1


class TestOfOwners:
    @pytest.fixture
    def anna(self) -> User:
        return User.objects.create_user("anna")

    def test_records_and_notes_are_stored_once(self, anna: User):
        lines = as_lines(*(of_owner(name, content) for name, content in (RECORDS | NOTES).items()))

        for _ in range(2):
            import_lines(lines, anna)

        assert (ModelCall.objects.get().owner, Note.objects.get().owner) == (anna, anna)
        assert sorted(CallSum.objects.values_list("span", "calls")) == [("day", 1), ("month", 1), ("total", 1)]

    def test_the_records_of_two_conversations_take_as_many_queries_as_one(self, anna: User):
        def count() -> int:
            with CaptureQueriesContext(connection) as queries:
                lines = list(export_lines(Conversation.objects.none(), owner=anna.pk))
            assert [json.loads(line)["content"]["conversation"] for line in lines] == list("ab")[: len(lines)]
            return len(queries)

        counts = []
        for memory_id in "ab":
            get_chat_memory(memory_id, owner=anna).add(UserMessage("Hello"))
            conversation = Conversation.objects.get(memory_id=memory_id)
            ModelCall.objects.create(purpose="answer", outcome="completed", owner=anna, conversation=conversation)
            counts.append(count())

        assert counts[0] == counts[1]

    def test_each_of_many_users_is_asked_for_once(self):
        users = User.objects.bulk_create(User(username=f"user-{number}") for number in range(150))
        for seconds in range(2):
            at = datetime(2026, 11, 27, 8, 0, seconds, tzinfo=UTC)
            ModelCall.objects.bulk_create(
                ModelCall(purpose="answer", outcome="completed", owner=each, created_at=at) for each in users
            )

        with CaptureQueriesContext(connection) as queries:
            lines = list(export_lines(Conversation.objects.all(), owner=EVERYBODY, names=True))

        assert sorted({json.loads(line)["owner"] for line in lines}) == sorted(each.username for each in users)
        assert len(lines) == 300
        assert len(queries) < 170

    def test_notes_that_are_switched_off_on_either_site_are_off(self, anna: User):
        book = "chatmemory_notes.notebook"
        for is_on in (True, False, True):
            import_lines(as_lines(of_owner(book, {"is_on": is_on})), anna)

        assert not Notebook.objects.get().is_on

    def test_sums_of_two_days_are_one_of_a_month(self, anna: User):
        days = (of_owner("chatmemory_chat.callsum", DAY | {"begin": f"2026-11-0{day}", "run": day}) for day in (1, 2))

        import_lines(as_lines(*days), anna)

        assert CallSum.objects.get(span="month").calls == 2

    @pytest.mark.parametrize("name", RECORDS)
    def test_records_of_a_file_that_is_not_trusted_are_refused(self, name: str, anna: User):
        assert refused(of_owner(name, RECORDS[name]), owner=anna, trusted=False) == (
            f"Line 1: {name!r}: these are records of a site, which a file that is not trusted must not have."
        )

    def test_limits_allow_none(self, anna: User):
        error = refused(of_owner("chatmemory_chat.modelcall", CALL), owner=anna, limits=ImportLimits())

        assert error == "Line 1: 'chatmemory_chat.modelcall' is imported by import_chatmemory alone."

    def test_an_error_in_one_leaves_none_of_those_beside_it(self, anna: User):
        wrong = of_owner("chatmemory_chat.modelcall", CALL | {"cost": "-1"})

        assert refused(of_owner("chatmemory_chat.modelcall", CALL), wrong, owner=anna).startswith(
            "Line 2: 'chatmemory_chat.modelcall': cost is -1, but must be at least 0"
        )
        assert not ModelCall.objects.exists()

    @pytest.mark.parametrize(
        ("name", "field", "value"),
        [
            ("chatmemory_chat.modelcall", "purpose", "fun"),
            ("chatmemory_chat.modelcall", "input_tokens", 2**31),
            ("chatmemory_chat.modelcall", "seconds", -1),
            ("chatmemory_chat.modelcall", "cost", "1e400"),
            ("chatmemory_chat.modelcall", "cost", "NaN"),
            ("chatmemory_chat.modelcall", "created_at", "2026-11-27T08:00:00"),
            ("chatmemory_chat.modelcall", "created_at", "0001-01-01T00:00:00Z"),
            ("chatmemory_chat.modelcall", "model", "\0"),
            ("chatmemory_chat.modelcall", "labels", {"tenant": 1}),
            ("chatmemory_chat.modelcall", "labels", {str(n): "a" for n in range(9)}),
            ("chatmemory_chat.modelcall", "mood", "good"),
            ("chatmemory_chat.callsum", "calls", 2**63),
            ("chatmemory_chat.callsum", "begin", "2026-02-30"),
            ("chatmemory_notes.note", "number", 0),
            ("chatmemory_notes.note", "number", 2**31 - 1),  # the next one would have no number
            ("chatmemory_notes.notebook", "last_number", 2**31 - 1),
            ("chatmemory_notes.note", "created_at", "now"),
            ("chatmemory_notes.notebook", "is_on", 1),
        ],
    )
    def test_wrong_content_is_refused_with_its_line(self, name: str, field: str, value: object, anna: User):
        content = (RECORDS | NOTES)[name] | {field: value}

        assert refused(of_owner(name, content), owner=anna).startswith(f"Line 1: {name!r}: ")

    @given(st.sampled_from(sorted(RECORDS | NOTES)), st.data())
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_any_content_is_stored_or_refused(self, name: str, data: Any):
        content = (RECORDS | NOTES)[name]
        values = (
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats(allow_nan=False)
            | st.text()
            | st.just({})
            | st.just([])
        )
        changed = content | {data.draw(st.sampled_from(sorted(content))): data.draw(values)}
        owner = User.objects.get_or_create(username="ben")[0]
        with suppress(JsonLinesError):
            import_lines(as_lines(of_owner(name, changed)), owner)


class TestCommands:
    @pytest.fixture
    def imported(self, tmp_path) -> Callable[..., None]:
        """Return a function that imports a line of a conversation."""

        def imported(line: dict, owners: object = None, **options: Any) -> None:
            lines, mapping = tmp_path / "lines.jsonl", tmp_path / "owners.json"
            lines.write_text(json.dumps(line))
            if owners is not None:
                mapping.write_text(json.dumps(owners))
                options["owners"] = str(mapping)
            call_command("import_chatmemory", str(lines), verbosity=0, **options)

        return imported

    def test_a_user_who_is_not_there_is_named(self, imported):
        with pytest.raises(
            CommandError, match="it names the user 'anna', but there is no user 'anna' here; create that"
        ):
            imported(head(owner="anna"))

    def test_a_file_of_others_names_no_owner(self, imported):
        User.objects.create_user("anna")
        with pytest.raises(CommandError, match="it names the user 'anna'; for a file that is not trusted, --user or"):
            imported(head(owner="anna"), untrusted=True)

        imported(head(owner="anna"), {"anna": "anna"}, untrusted=True)

        assert Conversation.objects.get().owner.username == "anna"

    def test_its_files_may_begin_with_a_byte_order_mark(self, tmp_path):
        ben = User.objects.create_user("ben")
        for name, content in (("lines.jsonl", head(owner="anna")), ("owners.json", {"anna": "ben"})):
            (tmp_path / name).write_text(json.dumps(content), "utf-8-sig")

        call_command("import_chatmemory", str(tmp_path / "lines.jsonl"), owners=str(tmp_path / "owners.json"))

        assert Conversation.objects.get().owner == ben

    @pytest.mark.parametrize("owners", [[], {"anna": 1}, "anna"])
    def test_names_that_are_no_object_are_refused(self, imported, owners: object):
        with pytest.raises(CommandError, match="It must be a JSON object like") as caught:
            imported(head(), owners)

        assert caught.value.returncode == 2

    def test_names_are_not_for_another_framework(self, imported):
        with pytest.raises(CommandError, match="--owners cannot be used with --from"):
            imported(head(), {}, framework="langchain")

    def test_an_export_of_a_conversation_has_nothing_besides(self, imported, capsys):
        imported(head())
        capsys.readouterr()
        ModelCall.objects.create(purpose="answer", outcome="completed")

        call_command("export_chatmemory", memory_ids=["a"], verbosity=0)

        assert len(capsys.readouterr().out.splitlines()) == 1
        assert len(list(export_lines(Conversation.objects.all(), owner=EVERYBODY))) == 2
