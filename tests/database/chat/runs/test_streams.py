"""Storage for the streams of answers: one contract for the database and for Redis."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from io import StringIO
from uuid import uuid4

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from chatmemory_django.chat.models import AnswerChunk, AnswerStream
from chatmemory_django.chat.runs import streams as streams_module
from chatmemory_django.chat.runs.deleting import Deletion
from chatmemory_django.chat.runs.streams import (
    DEAD_AFTER,
    KEEP,
    DatabaseStreams,
    Maker,
    Piece,
    Streams,
    StreamsUnavailableError,
    delete_old,
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


def maker(memory_id: str, owner_key: str = "1") -> Maker:
    return Maker(memory_id, owner_key, uuid4().hex)


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


class Case:
    """Streams, and a way to make time pass for them."""

    def __init__(self, kept: Streams) -> None:
        self.streams = kept
        self.memory_id = f"c-{uuid4().hex}"

    def let_die(self, dead: Maker) -> None:
        """Pretend that the maker has sent no heartbeat for a long time."""
        if isinstance(self.streams, DatabaseStreams):
            long_ago = F("written_at") - timedelta(seconds=DEAD_AFTER + 1)
            AnswerStream.objects.filter(answer_id=dead.answer_id).update(written_at=long_ago)
        else:
            redis_streams._client(REDIS).delete(redis_streams._lease(dead.memory_id))

    def let_pass(self, made: Maker) -> None:
        """Pretend that the pieces of an answer in progress are about to be deleted."""
        if isinstance(self.streams, DatabaseStreams):
            AnswerChunk.objects.update(written_at=F("written_at") - timedelta(seconds=KEEP + 1))
        else:
            redis_streams._client(REDIS).pexpire(redis_streams._pieces(made), 200)

    def delete_old(self) -> None:
        if isinstance(self.streams, DatabaseStreams):
            delete_old("default")
        else:
            time.sleep(0.3)

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
    def test_only_one_answer_at_a_time_is_generated_in_a_conversation(self, case):
        first, second = maker(case.memory_id), maker(case.memory_id)

        assert case.streams.begin(first) is None
        silent_for = case.streams.begin(second)

        assert 0 <= silent_for < DEAD_AFTER
        assert case.streams.find(case.memory_id, "1") == first

    def test_the_answers_that_an_owner_has_in_progress_are_counted(self, case):
        owner = uuid4().hex
        one, other = maker(case.memory_id, owner), maker(f"{case.memory_id} 2", owner)
        case.streams.begin(maker(f"{case.memory_id} 3", "another owner"))

        counts = [case.streams.running(owner)]
        for begun in (one, other):
            case.streams.begin(begun)
            counts.append(case.streams.running(owner))
        case.streams.write({one: Piece(0, "more"), other: NOTHING})
        counts.append(case.streams.running(owner))
        for ended in (one, other):
            case.streams.end(ended, NOTHING)
            counts.append(case.streams.running(owner))

        assert counts == [0, 1, 2, 2, 1, 0]

    def test_the_next_answer_begins_when_the_previous_one_has_ended(self, case):
        first, second = maker(case.memory_id), maker(case.memory_id)
        case.streams.begin(first)

        case.streams.end(first, NOTHING)

        assert case.streams.find(case.memory_id, "1") is None
        assert case.streams.begin(second) is None
        assert case.streams.find(case.memory_id, "1") == second

    def test_an_answer_whose_maker_died_does_not_block_the_next(self, case):
        dead, second = maker(case.memory_id), maker(case.memory_id)
        case.streams.begin(dead)

        case.let_die(dead)

        assert case.streams.find(case.memory_id, "1") is None
        assert case.streams.begin(second) is None

    def test_a_maker_taken_for_dead_cannot_do_harm(self, case):
        dead, second = maker(case.memory_id), maker(case.memory_id)
        case.streams.begin(dead)
        case.let_die(dead)
        case.streams.begin(second)

        case.streams.write({dead: Piece(0, "late")})
        case.streams.stop(dead)
        case.streams.end(dead, NOTHING)

        assert case.streams.find(case.memory_id, "1") == second
        assert case.streams.write({second: Piece(0, "mine")}) == set()
        assert case.streams.read(second, 0) == (["mine"], True)

    def test_pieces_are_read_in_order_from_any_position(self, case):
        made = maker(case.memory_id)
        case.streams.begin(made)
        for place in range(12):
            case.streams.write({made: Piece(place, f"{place};")})

        assert case.streams.read(made, 0) == ([f"{place};" for place in range(12)], True)
        assert case.streams.read(made, 10) == (["10;", "11;"], True)
        assert case.streams.read(made, 12) == ([], True)

    def test_a_piece_written_twice_is_stored_once(self, case):
        made = maker(case.memory_id)
        case.streams.begin(made)

        case.streams.write({made: Piece(0, "once")})
        case.streams.write({made: Piece(0, "once")})

        assert case.streams.read(made, 0) == (["once"], True)

    def test_a_heartbeat_writes_no_pieces(self, case):
        made = maker(case.memory_id)
        case.streams.begin(made)

        assert case.streams.write({made: Piece(0, "")}) == set()
        assert case.streams.read(made, 0) == ([], True)

    def test_an_ended_stream_can_still_be_read(self, case):
        made = maker(case.memory_id)
        case.streams.begin(made)
        case.streams.write({made: Piece(0, "almost")})

        case.streams.end(made, Piece(1, " all"))

        assert case.streams.read(made, 0) == (["almost", " all"], False)

    def test_its_maker_learns_that_it_is_to_stop(self, case):
        one, other = maker(case.memory_id), maker(f"{case.memory_id}-other")
        case.streams.begin(one)
        case.streams.begin(other)

        case.streams.stop(one)

        assert case.streams.write({one: Piece(0, ""), other: Piece(0, "x")}) == {one}

    def test_a_stop_does_not_affect_the_next_answer(self, case):
        first, second = maker(case.memory_id), maker(case.memory_id)
        case.streams.begin(first)
        case.streams.stop(first)
        case.streams.end(first, NOTHING)

        case.streams.begin(second)

        assert case.streams.write({second: Piece(0, "x")}) == set()

    def test_other_users_do_not_find_it(self, case):
        case.streams.begin(maker(case.memory_id, "1"))

        assert case.streams.find(case.memory_id, "2") is None

    def test_any_text_is_stored(self, case):
        made, text = maker(case.memory_id), 'data: {"delta":"é 😀 \\ud800 \\u0000"}\n\n'
        case.streams.begin(made)

        case.streams.write({made: Piece(0, text)})

        assert case.streams.read(made, 0) == ([text], True)

    def test_an_answer_without_a_piece_for_long_keeps_the_earlier_ones(self, case):
        made = maker(case.memory_id)
        case.streams.begin(made)
        case.streams.write({made: Piece(0, "one")})
        case.let_pass(made)

        case.streams.write({made: Piece(1, "")})
        case.delete_old()
        case.streams.write({made: Piece(1, " two")})

        assert case.streams.read(made, 0) == (["one", " two"], True)


class TestErasing:
    def test_an_erased_conversation_takes_its_streams_along(self, case):
        ended, running, other = maker(case.memory_id), maker(case.memory_id), maker(f"{case.memory_id}-other")
        for each in (ended, running, other):
            case.streams.begin(each)
            case.streams.write({each: Piece(0, "private")})
            if each == ended:
                case.streams.end(each, Piece(1, " secret"))

        case.streams.forget([case.memory_id, "unknown"], erased=True)

        assert case.streams.read(ended, 0) == case.streams.read(running, 0) == ([], False)
        assert case.streams.find(case.memory_id, "1") is None
        assert case.streams.read(other, 0) == (["private"], True)

    def test_an_answer_in_an_erased_conversation_stops_and_writes_nothing_more(self, case):
        made, other = maker(case.memory_id), maker(f"{case.memory_id}-other")
        case.streams.begin(made)
        case.streams.begin(other)
        case.streams.write({made: Piece(0, "private")})
        case.streams.forget([case.memory_id], erased=True)
        case.streams.forget([case.memory_id], erased=True)

        for _ in range(2):
            assert case.streams.write({made: Piece(1, "late"), other: Piece(0, "x")}) == {made}
        case.streams.end(made, Piece(1, "last"))

        assert case.streams.read(made, 0) == ([], False)
        case.streams.end(other, Piece(1, "y"))
        case.streams.forget([other.memory_id], erased=True)
        assert case.places(case.memory_id) == []

    def test_the_next_conversation_with_the_same_id_is_another_one(self, case):
        first, second = maker(case.memory_id), maker(case.memory_id)
        case.streams.begin(first)
        case.streams.forget([case.memory_id], erased=True)

        assert case.streams.begin(second) is None
        assert case.streams.write({first: Piece(0, "old"), second: Piece(0, "new")}) == {first}
        case.streams.end(first, Piece(1, "old"))

        assert case.streams.read(second, 0) == (["new"], True)
        assert case.streams.read(first, 0) == ([], False)

    def test_a_removed_message_takes_the_streams_of_ended_answers_along(self, case):
        ended, running = maker(case.memory_id), maker(case.memory_id)
        case.streams.begin(ended)
        case.streams.end(ended, Piece(0, "private"))
        case.streams.begin(running)
        case.streams.write({running: Piece(0, "still")})

        case.streams.forget([case.memory_id], erased=False)

        assert case.streams.read(ended, 0) == ([], False)
        assert case.streams.write({running: Piece(1, " there")}) == set()
        assert case.streams.read(running, 0) == (["still", " there"], True)

    def test_a_removed_message_takes_the_stream_of_a_dead_answer_along(self, case):
        dead = maker(case.memory_id)
        case.streams.begin(dead)
        case.streams.write({dead: Piece(0, "private")})
        case.let_die(dead)

        case.streams.forget([case.memory_id], erased=False)

        assert case.streams.read(dead, 0) == ([], False)

    @pytest.mark.parametrize("erase", WAYS)
    def test_every_way_to_erase_deletes_them(self, case, erase):
        user = get_user_model().objects.create_user("ann")
        ended, running = maker(case.memory_id), maker(case.memory_id)
        get_chat_memory(case.memory_id, owner=user).add(UserMessage("Hello"))
        case.streams.begin(ended)
        case.streams.end(ended, Piece(0, "private"))
        case.streams.begin(running)
        case.streams.write({running: Piece(0, "private")})

        WAYS[erase](Conversation.objects.get())

        assert case.streams.read(ended, 0) == case.streams.read(running, 0) == ([], False)
        assert case.streams.write({running: Piece(1, "late")}) == {running}
        case.streams.end(running, Piece(1, "late"))
        assert case.places(case.memory_id) == []

    def test_an_erasure_that_is_rolled_back_deletes_nothing(self, case):
        made = maker(case.memory_id)
        get_chat_memory(case.memory_id).add(UserMessage("Hello"))
        case.streams.begin(made)
        case.streams.write({made: Piece(0, "still there")})

        with pytest.raises(RuntimeError), transaction.atomic():
            Conversation.objects.all().delete()
            raise RuntimeError

        assert case.streams.read(made, 0) == (["still there"], True)
        assert case.streams.write({made: Piece(1, "x")}) == set()

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
        case.streams.begin(made)
        case.streams.write({made: Piece(0, "Hi")})
        ended = maker(f"{case.memory_id}-2")
        case.streams.begin(ended)
        case.streams.end(ended, Piece(0, "Bye"))
        now = timezone.now
        monkeypatch.setattr(timezone, "now", lambda: now() + timedelta(seconds=seconds))
        monkeypatch.setattr(time, "time", lambda: now().timestamp() + seconds)

        assert 0 <= case.streams.begin(maker(case.memory_id)) < DEAD_AFTER
        assert case.streams.find(case.memory_id, "1") == made
        assert case.streams.read(made, 0) == (["Hi"], True)
        assert case.streams.begin(maker(ended.memory_id)) is None
        case.delete_old()
        assert case.streams.read(ended, 0) == (["Bye"], False)
        case.streams.forget([ended.memory_id], erased=False)
        assert case.streams.read(ended, 0) == ([], False)


@pytest.fixture
def in_redis(request, settings) -> Case:
    settings.CHATMEMORY = {"CHAT": {"REDIS_URL": REDIS}}
    try:
        redis_streams._client(REDIS).ping()
    except redis.ConnectionError:
        pytest.skip("There is no Redis to test with: start one, or set REDIS_URL")
    return Case(redis_streams.RedisStreams())


@needs_redis
class TestLossesOfRedis:
    """Redis may lose what has an expiry when its memory is full, and everything when it is restarted."""

    def test_an_answer_whose_lease_is_lost_takes_it_again(self, in_redis):
        made, other = maker(in_redis.memory_id), maker(in_redis.memory_id)
        in_redis.streams.begin(made)
        in_redis.streams.write({made: Piece(0, "one ")})
        redis_streams._client(REDIS).delete(redis_streams._lease(made.memory_id))

        assert in_redis.streams.write({made: Piece(1, "two")}) == set()

        assert in_redis.streams.read(made, 0) == (["one ", "two"], True)
        assert in_redis.streams.begin(other) is not None

    def test_an_answer_whose_lease_was_taken_by_another_does_not_take_it(self, in_redis):
        made, other = maker(in_redis.memory_id), maker(in_redis.memory_id)
        in_redis.streams.begin(made)
        redis_streams._client(REDIS).delete(redis_streams._lease(made.memory_id))
        in_redis.streams.begin(other)

        assert in_redis.streams.write({made: Piece(0, "one ")}) == set()

        assert in_redis.streams.find(made.memory_id, "1") == other
        assert in_redis.streams.read(made, 0) == ([], False)

    def test_who_listens_hears_what_follows_lost_pieces_and_no_one_a_stream_without_its_beginning(self, in_redis):
        made = maker(in_redis.memory_id)
        in_redis.streams.begin(made)
        in_redis.streams.write({made: Piece(0, "one ")})
        in_redis.streams.write({made: Piece(1, "two ")})
        redis_streams._client(REDIS).delete(redis_streams._pieces(made))

        in_redis.streams.write({made: Piece(2, "three")})

        assert in_redis.streams.read(made, 2) == (["three"], True)
        assert in_redis.streams.read(made, 0) == ([], True)

    def test_an_answer_begins_once_even_if_the_reply_is_lost(self, in_redis):
        made = maker(in_redis.memory_id)

        assert in_redis.streams.begin(made) is None
        assert in_redis.streams.begin(made) is None

    def test_broken_keys_of_one_conversation_stop_no_other(self, in_redis, caplog):
        broken, made = maker(in_redis.memory_id), maker(f"{in_redis.memory_id}-2")
        for each in (broken, made):
            in_redis.streams.begin(each)
        redis_streams._client(REDIS).set(redis_streams._pieces(broken), "x", ex=60)

        assert in_redis.streams.write({broken: Piece(0, "one"), made: Piece(0, "one")}) == set()

        assert in_redis.streams.read(made, 0) == (["one"], True)
        assert "could not be written" in caplog.text
        with pytest.raises(StreamsUnavailableError):
            in_redis.streams.read(broken, 0)
        redis_streams._client(REDIS).set(redis_streams._lease(broken.memory_id), "x", ex=60)
        for fail in (in_redis.streams.find, in_redis.streams.begin):
            with pytest.raises(StreamsUnavailableError):
                fail(*((broken.memory_id, "1") if fail == in_redis.streams.find else (broken,)))

    def test_bytes_that_are_no_text_are_replaced(self, in_redis):
        made = maker(in_redis.memory_id)
        in_redis.streams.begin(made)
        redis.Redis.from_url(REDIS).rpush(redis_streams._pieces(made), b"\xff")

        assert in_redis.streams.read(made, 0) == (["\ufffd"], True)

    def test_an_unreachable_redis_is_an_error_without_its_address(self, settings):
        settings.CHATMEMORY = {"CHAT": {"REDIS_URL": "redis://:secret@127.0.0.1:1/0"}}
        kept, made = redis_streams.RedisStreams(), maker("c")

        for call in (
            lambda: kept.begin(made),
            lambda: kept.write({made: NOTHING}),
            lambda: kept.end(made, NOTHING),
            lambda: kept.find("c", "1"),
            lambda: kept.read(made, 0),
            lambda: kept.stop(made),
            lambda: kept.forget(["c"], erased=True),
        ):
            with pytest.raises(StreamsUnavailableError, match=r"^Redis cannot keep .*: ConnectionError\.$"):
                call()

    def test_a_redis_that_does_not_answer_is_given_up(self, settings):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = f"redis://127.0.0.1:{silent.getsockname()[1]}/0?socket_timeout=0.1"
            settings.CHATMEMORY = {"CHAT": {"REDIS_URL": address}}

            with pytest.raises(StreamsUnavailableError, match="TimeoutError"):
                redis_streams.RedisStreams().find("c", "1")


class TestDeletion:
    def test_ended_streams_are_deleted_on_an_idle_site(self, monkeypatch):
        monkeypatch.setattr(streams_module, "KEEP", 0.2)
        streams_module.deletion.cache_clear()
        kept, ended, running = DatabaseStreams(), maker("ended"), maker("running")
        try:
            kept.begin(running)
            kept.write({running: Piece(0, "still there")})
            kept.begin(ended)

            kept.end(ended, Piece(0, "private"))
            assert wait_until(lambda: not AnswerChunk.objects.filter(memory_id="ended").exists())
            assert wait_until(lambda: not Deletion.running)
            assert "chatmemory-deletion" not in {thread.name for thread in threading.enumerate()}

            kept.end(running, Piece(1, "!"))
            assert len(Deletion.running) == 1
            assert wait_until(lambda: not AnswerChunk.objects.exists() and not Deletion.running)
        finally:
            streams_module.deletion.cache_clear()

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
        kept, made = DatabaseStreams(), maker("c")
        kept.begin(made)
        kept.write({made: Piece(0, "early")})
        AnswerChunk.objects.update(written_at=F("written_at") - timedelta(seconds=KEEP + 1))
        kept.write({made: Piece(1, "late")})

        delete_old("default")
        assert kept.read(made, 0) == (["early", "late"], True)
        kept.end(made, Piece(2, ""))
        delete_old("default")
        assert kept.read(made, 0) == (["early", "late"], False)
        AnswerChunk.objects.update(written_at=F("written_at") - timedelta(seconds=KEEP + 1))
        delete_old("default")
        assert not AnswerChunk.objects.exists()


class TestDatabase:
    def test_writing_for_many_takes_as_many_statements_as_for_one(self, django_assert_num_queries):
        kept, makers = DatabaseStreams(), [maker(f"c{number}") for number in range(20)]
        for each in makers:
            kept.begin(each)

        with django_assert_num_queries(5):  # BEGIN, INSERT, UPDATE, COMMIT, SELECT
            kept.write({each: Piece(0, "x") for each in makers})

        assert all(kept.read(each, 0) == (["x"], True) for each in makers)


@needs_redis
def test_the_settings_name_them(settings):
    settings.CHATMEMORY = {"CHAT": {"STREAMS": "chatmemory_django.chat.runs.redis_streams.RedisStreams"}}
    assert isinstance(streams(), redis_streams.RedisStreams)

    settings.CHATMEMORY = {}
    assert type(streams()) is streams_module.DatabaseStreams
