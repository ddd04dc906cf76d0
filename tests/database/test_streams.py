"""Storage for the streams of answers: one contract for the database and for Redis."""

import os
from collections.abc import Iterator
from datetime import timedelta
from uuid import uuid4

import pytest
from django.utils import timezone

from chatmemory_django.chat import streams as streams_module
from chatmemory_django.chat.models import AnswerChunk, AnswerStream
from chatmemory_django.chat.streams import DEAD_AFTER, KEEP, DatabaseStreams, Maker, Piece, Streams, streams

redis = pytest.importorskip("redis", reason="Streams in Redis need redis: pip install redis")
redis_streams = pytest.importorskip("chatmemory_django.chat.redis_streams")

pytestmark = pytest.mark.django_db(transaction=True)

REDIS = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/9")


def maker(memory_id: str, owner_key: str = "1") -> Maker:
    return Maker(memory_id, owner_key, uuid4().hex)


NOTHING = Piece(0, "")


class Case:
    """Streams, and a way to make time pass for them."""

    def __init__(self, kept: Streams) -> None:
        self.streams = kept
        self.memory_id = f"c-{uuid4().hex}"

    def let_die(self, dead: Maker) -> None:
        """Pretend that the maker has sent no heartbeat for a long time."""
        if isinstance(self.streams, DatabaseStreams):
            long_ago = timezone.now() - timedelta(seconds=DEAD_AFTER + 1)
            AnswerStream.objects.filter(answer_id=dead.answer_id).update(written_at=long_ago)
        else:
            redis_streams._client(REDIS).delete(redis_streams._lease(dead))


@pytest.fixture(params=["database", "redis"])
def case(request, settings) -> Iterator[Case]:
    if request.param == "database":
        yield Case(DatabaseStreams())
        return
    settings.CHATMEMORY = {"CHAT": {"REDIS_URL": REDIS}}
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


class TestDatabase:
    def test_old_streams_are_deleted_when_another_begins(self):
        kept, old, dead, new = DatabaseStreams(), maker("old"), maker("dead"), maker("new")
        kept.begin(old)
        kept.end(old, Piece(0, "private"))
        kept.begin(dead)
        for table in (AnswerChunk, AnswerStream):
            table.objects.update(written_at=timezone.now() - timedelta(seconds=KEEP + 1))

        DatabaseStreams().begin(new)  # each process checks only now and then

        assert not AnswerChunk.objects.exists()
        assert AnswerStream.objects.get().memory_id == "new"

    def test_writing_for_many_takes_as_many_statements_as_for_one(self, django_assert_num_queries):
        kept, makers = DatabaseStreams(), [maker(f"c{number}") for number in range(20)]
        for each in makers:
            kept.begin(each)

        with django_assert_num_queries(5):  # BEGIN, INSERT, UPDATE, COMMIT, SELECT
            kept.write({each: Piece(0, "x") for each in makers})

        assert all(kept.read(each, 0) == (["x"], True) for each in makers)


def test_the_settings_name_them(settings):
    settings.CHATMEMORY = {"CHAT": {"STREAMS": "chatmemory_django.chat.redis_streams.RedisStreams"}}
    assert isinstance(streams(), redis_streams.RedisStreams)

    settings.CHATMEMORY = {}
    assert type(streams()) is streams_module.DatabaseStreams
