"""Storage for the streams of answers: one contract for the database and for Redis."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from io import StringIO
from uuid import UUID, uuid4

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import connection, transaction
from django.db.models import F
from django.utils import timezone

from chatmemory_django.chat.models import AnswerChunk, Run
from chatmemory_django.chat.runs import deleting, leases
from chatmemory_django.chat.runs import streams as streams_module
from chatmemory_django.chat.runs.deleting import KEEP, Deletion, delete_old
from chatmemory_django.chat.runs.following import Listening
from chatmemory_django.chat.runs.leases import DEAD_AFTER, Progress, State, Taken
from chatmemory_django.chat.runs.streams import (
    MAX_PIECES,
    DatabaseStreams,
    Maker,
    Piece,
    Streams,
    StreamsUnavailableError,
    forget_ended,
    streams,
)
from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.operations import erase, prune
from chatmemory_django.provider import get_chat_memory
from tests.leftovers import leftovers
from tests.waiting import wait_until

try:
    import redis

    from chatmemory_django.chat.runs import redis_streams
except ImportError:
    redis = None

needs_redis = pytest.mark.skipif(redis is None, reason="Streams in Redis need redis: pip install redis")

pytestmark = pytest.mark.django_db(transaction=True)

REDIS = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/9")


def maker(memory_id: str) -> Maker:
    return Maker(memory_id, "", uuid4().hex)


def taken(made: Maker, assistant: str | None = None) -> Taken:
    """Take the run of *made*; its conversation has a message, so it stays."""
    get_chat_memory(made.memory_id).add(UserMessage("Hello"))
    found = leases.take("default", made.memory_id, None, UUID(made.answer_id), assistant)
    assert isinstance(found, Taken)
    return found


NOTHING = Piece(0, "")

WAYS: dict[str, Callable[[Conversation], object]] = {
    "operations.erase": lambda conversation: erase(Conversation.objects.all()),
    "the command": lambda conversation: call_command("erase_chatmemory", user="ann", stdout=StringIO()),
    "prune": lambda conversation: prune(Conversation.objects.all(), idle=timedelta(0)),
    "QuerySet.delete": lambda conversation: Conversation.objects.all().delete(),
    "Model.delete": lambda conversation: conversation.delete(),
    "User.delete": lambda conversation: conversation.owner.delete(),
    "QuerySet.delete of users": lambda conversation: get_user_model().objects.all().delete(),
}


LEFT_SECONDS = 10
"""For how long what is about to be deleted is still there: less than what was just written."""


class Case:
    """Streams, and a way to make time pass for them."""

    def __init__(self, kept: Streams) -> None:
        self.streams = kept
        self.memory_id = f"c-{uuid4().hex}"

    def read(self, made: Maker, position: int) -> list[str]:
        """Return the data of what is stored of an answer from *position* on."""
        return [piece.data for piece in self.streams.read(made, position)]

    def let_pass(self, made: Maker) -> None:
        """Pretend that the pieces of an answer are about to be deleted."""
        if isinstance(self.streams, DatabaseStreams):
            AnswerChunk.objects.update(written_at=F("written_at") - timedelta(seconds=KEEP + 1))
        else:
            redis_streams._client(REDIS).expire(redis_streams._pieces(made.memory_id, made.answer_id), LEFT_SECONDS)

    def delete_old(self) -> None:
        """Delete what is about to be deleted, as Redis does by itself."""
        if isinstance(self.streams, DatabaseStreams):
            delete_old("default")
        else:
            client = redis_streams._client(REDIS)
            for key in client.scan_iter(redis_streams._pieces(self.memory_id, "*")):
                if client.ttl(key) <= LEFT_SECONDS:
                    client.delete(key)

    def places(self, text: str) -> list[str]:
        """Return where *text* is stored."""
        return leftovers(text)


@pytest.fixture(params=["database", pytest.param("redis", marks=needs_redis)])
def case(request, settings) -> Iterator[Case]:
    if request.param == "database":
        yield Case(DatabaseStreams())
        return
    settings.CHATMEMORY = {
        "CHAT": {"REDIS_URL": REDIS, "STREAMS": "chatmemory_django.chat.runs.redis_streams.RedisStreams"}
    }
    client = redis_streams._client(REDIS)
    try:
        client.ping()
    except redis.ConnectionError:
        pytest.skip("There is no Redis to test with: start one, or set REDIS_URL")
    yield Case(redis_streams.RedisStreams())
    client.close()


class TestContract:
    def test_pieces_are_read_in_order_from_any_position(self, case):
        made = maker(case.memory_id)
        for place in range(12):
            case.streams.write({made: Piece(place, f"{place};")})

        assert case.read(made, 0) == [f"{place};" for place in range(12)]
        assert case.read(made, 10) == ["10;", "11;"]
        assert case.read(made, 12) == []

    def test_those_of_several_answers_are_written_at_once(self, case):
        one, other = maker(case.memory_id), maker(f"{case.memory_id}-other")

        case.streams.write({one: Piece(0, "one"), other: Piece(0, "other")})

        assert (case.read(one, 0), case.read(other, 0)) == (["one"], ["other"])

    def test_a_piece_written_twice_is_stored_once(self, case):
        made = maker(case.memory_id)

        case.streams.write({made: Piece(0, "once")})
        case.streams.write({made: Piece(0, "once")})

        assert case.read(made, 0) == ["once"]

    def test_a_piece_that_comes_again_may_have_more_events(self, case):
        made = maker(case.memory_id)

        case.streams.write({made: Piece(0, "one ")})
        case.streams.write({made: Piece(0, "one two")})
        case.streams.write({made: Piece(1, " three")})

        assert case.read(made, 0) == ["one two", " three"]

    def test_an_empty_piece_adds_nothing(self, case):
        made = maker(case.memory_id)

        case.streams.write({made: NOTHING})

        assert case.read(made, 0) == []

    def test_any_text_is_stored(self, case):
        made, text = maker(case.memory_id), 'data: {"delta":"é 😀 \\ud800 \\u0000"}\n\n'

        case.streams.write({made: Piece(0, text)})

        assert case.read(made, 0) == [text]

    def test_an_answer_without_a_piece_for_long_keeps_the_earlier_ones(self, case):
        made = maker(case.memory_id)
        case.streams.write({made: Piece(0, "one")})
        case.streams.write({made: Piece(1, " two")})
        case.let_pass(made)

        case.streams.write({made: Piece(2, "")})
        case.delete_old()
        case.streams.write({made: Piece(2, " three")})

        assert case.read(made, 0) == ["one", " two", " three"]

    def test_others_are_deleted(self, case):
        made = maker(case.memory_id)
        case.streams.write({made: Piece(0, "one")})
        case.let_pass(made)

        case.delete_old()

        assert case.read(made, 0) == []


class TestEnds:
    def test_the_last_piece_comes_with_the_end_of_the_run(self, case):
        made = maker(case.memory_id)
        run = taken(made)
        case.streams.write({made: Piece(0, "almost")})

        assert case.streams.end(made, Piece(1, " all"), run, State.DONE, 1)

        assert case.read(made, 0) == ["almost", " all"]
        ended = Run.objects.get()
        assert (ended.state, ended.active, ended.question) == ("done", None, 1)
        assert leases.progress("default", run.run) == (Progress.ENDED, None)
        assert isinstance(leases.take("default", made.memory_id, None, uuid4()), Taken)

    def test_a_run_may_end_without_a_last_piece(self, case):
        made = maker(case.memory_id)

        assert case.streams.end(made, NOTHING, taken(made), State.FAILED)

        assert (case.read(made, 0), Run.objects.get().state) == ([], "failed")

    def test_one_that_was_lost_does_not_end(self, case):
        made = maker(case.memory_id)
        lost = taken(made)
        Run.objects.update(lease=F("lease") - timedelta(seconds=DEAD_AFTER + 1))
        leases.take("default", made.memory_id, None, uuid4())

        assert not case.streams.end(made, Piece(0, "late"), lost, State.DONE)

        assert Run.objects.get(pk=lost.run).state == "interrupted"

    def test_an_end_is_written_once_more_if_its_success_was_not_reported(self, case):
        made = maker(case.memory_id)
        run = taken(made)
        case.streams.end(made, Piece(0, "all"), run, State.DONE)

        assert not case.streams.end(made, Piece(0, "all"), run, State.DONE)

        assert case.read(made, 0) == ["all"]

    def test_the_new_conversation_of_an_answer_that_was_not_stored_goes(self, case):
        made = maker(case.memory_id)
        run = leases.take("default", made.memory_id, None, UUID(made.answer_id))

        assert case.streams.end(made, Piece(0, "error"), run, State.FAILED)

        assert not Conversation.objects.exists()

    @pytest.mark.skipif(connection.vendor != "postgresql", reason="other databases have no such statement")
    def test_it_takes_one_statement(self, django_assert_num_queries):
        made = maker("c")
        run = taken(made)

        with django_assert_num_queries(1):
            DatabaseStreams().end(made, Piece(0, "all"), run, State.DONE)


def piece(run: Taken, index: int, data: str) -> Piece:
    return Piece(run.fence * MAX_PIECES + index, data)


def taken_over(run: Taken) -> Taken:
    Run.objects.update(lease=F("lease") - timedelta(seconds=DEAD_AFTER + 1))
    found = leases.take_over("default", run.run)
    assert found is not None
    return found


class TestListening:
    def test_events_are_read_once_also_if_their_piece_comes_again_with_more(self, case):
        made = maker(case.memory_id)
        run, reading = taken(made), Listening(case.streams, "default", made)
        assert reading.read() == (Progress.RUNS, "")
        case.streams.write({made: piece(run, 0, "one ")})
        assert reading.read() == (Progress.RUNS, "one ")

        case.streams.write({made: piece(run, 0, "one two ")})  # whose success was not reported
        assert reading.read() == (Progress.RUNS, "two ")
        case.streams.write({made: piece(run, 1, "three ")})
        assert reading.read() == (Progress.RUNS, "three ")
        assert reading.read() == (Progress.RUNS, "")
        case.streams.end(made, piece(run, 1, "three four"), run, State.DONE)

        assert reading.read() == (Progress.ENDED, "four")
        assert Listening(case.streams, "default", made).read() == (Progress.ENDED, "one two three four")

    def test_of_several_processes_the_last_one_is_heard_and_what_it_has_read_of_others(self, case):
        made = maker(case.memory_id)
        first, early, late = taken(made, ""), *(Listening(case.streams, "default", made) for _ in range(2))
        case.streams.write({made: piece(first, 0, "one ")})
        assert early.read() == (Progress.RUNS, "one ")
        second = taken_over(first)
        case.streams.write({made: piece(first, 1, "two ")})  # late, and nobody has gone on yet
        assert early.read() == late.read() == (Progress.RUNS, "")
        third = taken_over(second)

        case.streams.write({made: piece(second, 0, "one three ")})
        assert early.read() == late.read() == (Progress.RUNS, "")
        case.streams.write({made: piece(third, 0, "one two four ")})
        case.streams.write({made: piece(first, 2, "three ")})
        assert (early.read(), late.read()) == ((Progress.RUNS, "two four "), (Progress.RUNS, "one two four "))
        case.streams.end(made, piece(third, 1, "five"), third, State.DONE)
        case.streams.write({made: piece(second, 1, "six")})

        assert early.read() == late.read() == (Progress.ENDED, "five")
        assert Listening(case.streams, "default", made).read() == (Progress.ENDED, "one two four five")


class TestErasing:
    def test_all_in_a_conversation_are_forgotten(self, case):
        one, two, other = maker(case.memory_id), maker(case.memory_id), maker(f"{case.memory_id}-other")
        for each in (one, two, other):
            case.streams.write({each: Piece(0, "private")})
            case.streams.write({each: Piece(1, " secret")})

        case.streams.forget([case.memory_id, "unknown"])

        assert case.read(one, 0) == case.read(two, 0) == []
        assert case.read(other, 0) == ["private", " secret"]
        case.streams.forget([other.memory_id])
        assert case.places(case.memory_id) == []

    def test_some_may_stay(self, case):
        gone, kept = maker(case.memory_id), maker(case.memory_id)
        for each in (gone, kept):
            case.streams.write({each: Piece(0, "private")})

        case.streams.forget([case.memory_id], but=[kept.answer_id])

        assert (case.read(gone, 0), case.read(kept, 0)) == ([], ["private"])
        case.streams.write({kept: Piece(1, " still")})
        case.streams.forget([case.memory_id])
        assert case.places(case.memory_id) == []

    def test_a_removed_message_takes_the_streams_of_ended_and_dead_answers_along(self, case):
        made = [maker(case.memory_id) for _ in range(3)]
        ended, dead, running = made
        case.streams.end(ended, Piece(0, "private"), taken(ended), State.DONE)
        taken(dead)
        case.streams.write({dead: Piece(0, "private")})
        Run.objects.update(lease=F("lease") - timedelta(seconds=DEAD_AFTER + 1))
        taken(running)
        case.streams.write({running: Piece(0, "still")})

        get_chat_memory(case.memory_id).remove(1)

        case.streams.write({running: Piece(1, " there")})
        assert [case.read(each, 0) for each in made] == [[], [], ["still", " there"]]

    @pytest.mark.parametrize("erase", WAYS)
    def test_every_way_to_erase_deletes_them(self, case, erase):
        user = get_user_model().objects.create_user("ann")
        get_chat_memory(case.memory_id, owner=user).add(UserMessage("Hello"))
        ended, running = maker(case.memory_id), maker(case.memory_id)
        case.streams.end(ended, Piece(0, "private"), taken(ended), State.DONE)
        run = taken(running)
        case.streams.write({running: Piece(0, "private")})

        WAYS[erase](Conversation.objects.get())

        assert case.read(ended, 0) == case.read(running, 0) == []
        assert not Run.objects.exists()
        assert leases.stopping("default", [run]) == {}
        case.streams.write({running: Piece(1, "late")})  # as its process may, until it finds out
        assert not case.streams.end(running, Piece(2, "late"), run, State.DONE)
        forget_ended(case.streams, "default", [case.memory_id])
        assert case.places(case.memory_id) == []

    def test_a_piece_that_is_written_while_the_conversation_is_erased_does_not_stay(self, case):
        made = maker(case.memory_id)
        taken(made)
        case.streams.write({made: Piece(0, "private")})

        with transaction.atomic():
            Conversation.objects.all().delete()
            case.streams.write({made: Piece(1, "late")})

        assert case.places(case.memory_id) == []

    def test_the_next_conversation_with_the_same_id_is_another_one(self, case):
        first, second = maker(case.memory_id), maker(case.memory_id)
        taken(first)
        case.streams.write({first: Piece(0, "old")})
        with transaction.atomic():
            Conversation.objects.all().delete()
            taken(second)
            case.streams.write({second: Piece(0, "new")})
        case.streams.write({first: Piece(1, "old")})

        forget_ended(case.streams, "default", [case.memory_id])

        assert (case.read(first, 0), case.read(second, 0)) == ([], ["new"])

    def test_an_erasure_that_is_rolled_back_deletes_nothing(self, case):
        made = maker(case.memory_id)
        run = taken(made)
        case.streams.write({made: Piece(0, "still there")})

        with pytest.raises(RuntimeError), transaction.atomic():
            Conversation.objects.all().delete()
            raise RuntimeError

        assert case.read(made, 0) == ["still there"]
        assert leases.stopping("default", [run]) == {run.run: False}

    @needs_redis
    def test_a_conversation_is_erased_even_if_the_streams_elsewhere_cannot_be(self, settings, caplog):
        settings.CHATMEMORY = {
            "CHAT": {
                "STREAMS": "chatmemory_django.chat.runs.redis_streams.RedisStreams",
                "REDIS_URL": "redis://127.0.0.1:1/0",
            }
        }
        get_chat_memory("c").add(UserMessage("Hello"))

        Conversation.objects.all().delete()

        assert not Conversation.objects.exists()
        assert "Error calling" in caplog.text

    @pytest.mark.parametrize("seconds", [DEAD_AFTER + 1, -DEAD_AFTER - 1, 2 * KEEP])
    def test_a_server_whose_clock_is_wrong_finds_answers_in_progress(self, case, monkeypatch, seconds):
        made = maker(case.memory_id)
        run = taken(made)
        case.streams.write({made: Piece(0, "Hi")})
        ended = maker(f"{case.memory_id}-2")
        case.streams.end(ended, Piece(0, "Bye"), taken(ended), State.DONE)
        now = timezone.now
        monkeypatch.setattr(timezone, "now", lambda: now() + timedelta(seconds=seconds))
        monkeypatch.setattr(time, "time", lambda: now().timestamp() + seconds)

        assert 0 <= leases.take("default", made.memory_id, None, uuid4()) < DEAD_AFTER
        assert leases.find("default", made.memory_id, None) == run.run
        assert leases.progress("default", run.run) == (Progress.RUNS, run.fence)
        case.delete_old()
        assert case.read(made, 0) == ["Hi"]
        assert case.read(ended, 0) == ["Bye"]
        forget_ended(case.streams, "default", [made.memory_id, ended.memory_id])
        assert case.read(made, 0) == ["Hi"]
        assert case.read(ended, 0) == []


@pytest.fixture
def in_redis(request, settings) -> Case:
    settings.CHATMEMORY = {"CHAT": {"REDIS_URL": REDIS}}
    try:
        redis_streams._client(REDIS).ping()
    except redis.ConnectionError:
        pytest.skip("There is no Redis to test with: start one, or set REDIS_URL")
    return Case(redis_streams.RedisStreams())


def pieces_of(made: Maker) -> str:
    """Return the key of the pieces of an answer in Redis."""
    return redis_streams._pieces(made.memory_id, made.answer_id)


@needs_redis
class TestLossesOfRedis:
    """Redis may lose what has an expiry when its memory is full, and everything when it is restarted."""

    def test_who_listens_hears_what_follows_lost_pieces_and_no_one_a_stream_without_its_beginning(self, in_redis):
        made = maker(in_redis.memory_id)
        listening = [Listening(in_redis.streams, "default", made) for _ in range(2)]
        in_redis.streams.write({made: Piece(0, "one ")})
        in_redis.streams.write({made: Piece(1, "two ")})
        assert listening[0].read()[1] == "one two "
        redis_streams._client(REDIS).delete(pieces_of(made))

        in_redis.streams.write({made: Piece(2, "three")})

        assert [heard.read()[1] for heard in listening] == ["three", ""]

    def test_broken_keys_of_one_conversation_stop_no_other(self, in_redis, caplog):
        broken, made = maker(in_redis.memory_id), maker(f"{in_redis.memory_id}-2")
        redis_streams._client(REDIS).set(pieces_of(broken), "x", ex=60)

        in_redis.streams.write({broken: Piece(0, "one"), made: Piece(0, "one")})

        assert in_redis.read(made, 0) == ["one"]
        assert "could not be written" in caplog.text
        with pytest.raises(StreamsUnavailableError):
            in_redis.read(broken, 0)

    def test_bytes_that_are_no_text_are_replaced(self, in_redis):
        made = maker(in_redis.memory_id)
        redis.Redis.from_url(REDIS).zadd(pieces_of(made), {b"0:\xff": 0})

        assert in_redis.read(made, 0) == ["\ufffd"]

    def test_tenants_with_the_same_memory_ids_are_apart(self, in_redis, monkeypatch):
        """The engines of their packages keep the schema in the connection."""
        one, other = maker(in_redis.memory_id), maker(in_redis.memory_id)

        def at(schema: str) -> None:
            monkeypatch.setattr(connection._connections["default"], "schema_name", schema, raising=False)

        for schema, made in (("acme", one), ("globex", other)):
            at(schema)
            in_redis.streams.write({made: Piece(0, schema)})
        in_redis.streams.forget([in_redis.memory_id])

        assert in_redis.read(other, 0) == in_redis.read(one, 0) == []
        at("acme")
        assert in_redis.read(one, 0) == ["acme"]

    def test_everything_expires(self, in_redis):
        made = maker(in_redis.memory_id)
        in_redis.streams.write({made: Piece(0, "one")})

        keys = pieces_of(made), redis_streams._answers(made.memory_id)
        assert all(0 < redis_streams._client(REDIS).ttl(key) <= KEEP for key in keys)

    def test_an_unreachable_redis_is_an_error_without_its_address(self, settings):
        settings.CHATMEMORY = {"CHAT": {"REDIS_URL": "redis://:secret@127.0.0.1:1/0"}}
        kept, made = redis_streams.RedisStreams(), maker("c")

        for call in (
            lambda: kept.write({made: NOTHING}),
            lambda: kept.read(made, 0),
            lambda: kept.forget(["c"]),
        ):
            with pytest.raises(StreamsUnavailableError, match=r"^Redis cannot keep .*: ConnectionError\.$"):
                call()

    def test_a_run_ends_without_redis(self, settings, caplog):
        settings.CHATMEMORY = {"CHAT": {"REDIS_URL": "redis://:secret@127.0.0.1:1/0"}}
        made = maker("c")

        assert redis_streams.RedisStreams().end(made, Piece(0, "all"), taken(made), State.DONE)

        assert Run.objects.get().state == "done"
        assert "The end of an answer in 'c' could not be written" in caplog.text
        assert "secret" not in caplog.text

    def test_a_redis_that_does_not_answer_is_given_up(self, settings):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = f"redis://127.0.0.1:{silent.getsockname()[1]}/0?socket_timeout=0.1"
            settings.CHATMEMORY = {"CHAT": {"REDIS_URL": address}}

            with pytest.raises(StreamsUnavailableError, match="TimeoutError"):
                redis_streams.RedisStreams().read(maker("c"), 0)


class TestDeletion:
    def test_ended_streams_are_deleted_on_an_idle_site(self, monkeypatch):
        monkeypatch.setattr(deleting, "KEEP", 0.2)
        deleting.deletion.cache_clear()
        kept, ended = DatabaseStreams(), maker("ended")
        try:
            kept.end(ended, Piece(0, "private"), taken(ended), State.DONE)
            assert AnswerChunk.objects.exists()

            assert wait_until(lambda: not AnswerChunk.objects.exists())
            assert wait_until(lambda: not Deletion.running)
            assert "chatmemory-deletion" not in {thread.name for thread in threading.enumerate()}
        finally:
            deleting.deletion.cache_clear()

    def test_an_error_is_logged_and_tried_again(self, caplog):
        calls = []

        def delete() -> None:
            calls.append(time.monotonic())
            if len(calls) == 1:
                raise RuntimeError("The database is away.")

        Deletion(delete, 0.05).note_end()

        assert wait_until(lambda: not Deletion.running)
        assert len(calls) > 1
        assert "this is tried again" in caplog.text

    def test_many_ends_have_one_thread(self):
        deletion = Deletion(lambda: None, 60)
        for _ in range(20):
            deletion.note_end()

        threads = [thread for thread in threading.enumerate() if thread.name == "chatmemory-deletion"]
        deletion.stop()

        assert len(threads) == 1
        assert not threads[0].is_alive()

    def test_the_pieces_of_a_long_answer_are_deleted_together(self):
        case, made = Case(DatabaseStreams()), maker("c")
        case.streams.write({made: Piece(0, "early")})
        AnswerChunk.objects.update(written_at=F("written_at") - timedelta(seconds=KEEP + 1))
        case.streams.write({made: Piece(1, "late")})

        delete_old("default")
        assert case.read(made, 0) == ["early", "late"]
        AnswerChunk.objects.update(written_at=F("written_at") - timedelta(seconds=KEEP + 1))
        delete_old("default")
        assert not AnswerChunk.objects.exists()


class TestDatabase:
    def test_writing_for_many_takes_as_many_statements_as_for_one(self, django_assert_max_num_queries):
        kept, makers = DatabaseStreams(), [maker(f"c{number}") for number in range(20)]

        with django_assert_max_num_queries(3):  # BEGIN, INSERT, COMMIT
            kept.write({each: Piece(0, "x") for each in makers})

        assert all(kept.read(each, 0) == [Piece(0, "x")] for each in makers)

    def test_silent_ones_are_kept_by_one_statement(self, django_assert_num_queries):
        kept, makers = DatabaseStreams(), [maker(f"c{number}") for number in range(20)]
        kept.write({each: Piece(0, "x") for each in makers})

        with django_assert_num_queries(1):
            kept.write({each: Piece(1, "") for each in makers})


@needs_redis
def test_the_settings_name_them(settings):
    settings.CHATMEMORY = {"CHAT": {"STREAMS": "chatmemory_django.chat.runs.redis_streams.RedisStreams"}}
    assert isinstance(streams(), redis_streams.RedisStreams)

    settings.CHATMEMORY = {}
    assert type(streams()) is streams_module.DatabaseStreams
