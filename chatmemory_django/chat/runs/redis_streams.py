"""The streams of answers in Redis, for ``CHATMEMORY["CHAT"]["STREAMS"]``."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import cast

from django.db import connections, router

from chatmemory_django.chat.conf import chat_settings
from chatmemory_django.chat.runs.deleting import KEEP
from chatmemory_django.chat.runs.streams import Maker, Piece, Streams, StreamsUnavailableError
from chatmemory_django.models import Conversation

try:
    from redis import Redis
    from redis.backoff import NoBackoff
    from redis.exceptions import RedisError
    from redis.retry import Retry
except ImportError as exc:
    raise ImportError("RedisStreams requires redis: pip install 'chatmemory_django[redis]'.") from exc

logger = logging.getLogger(__name__)

TIMEOUT = 2.0
"""Seconds to wait for Redis; ``socket_timeout`` and ``socket_connect_timeout`` in the address replace them."""

_KEEP = round(KEEP)

_WRITE = """
if ARGV[3] ~= '' then
    redis.call('ZREMRANGEBYSCORE', KEYS[1], ARGV[2], ARGV[2])
    redis.call('ZADD', KEYS[1], ARGV[2], ARGV[2] .. ':' .. ARGV[3])
end
redis.call('EXPIRE', KEYS[1], ARGV[4])
redis.call('SADD', KEYS[2], ARGV[1])
redis.call('EXPIRE', KEYS[2], ARGV[4])
"""
"""Write a piece, also if this is retried, and keep those before it."""


class RedisStreams(Streams):
    """
    Streams in Redis, at ``CHATMEMORY["CHAT"]["REDIS_URL"]``.

    Each answer has a sorted set of pieces, and each conversation a set of the ids of its latest answers, to find these
    when it is erased. Everything expires by itself.
    """

    def __init__(self) -> None:
        self._redis = _client(chat_settings().REDIS_URL)

    def write(self, pieces: Mapping[Maker, Piece]) -> None:
        with _reached(), self._redis.pipeline(transaction=False) as pipeline:
            for maker, piece in pieces.items():
                keys = _pieces(maker.memory_id, maker.answer_id), _answers(maker.memory_id)
                pipeline.eval(_WRITE, len(keys), *keys, maker.answer_id, *piece, _KEEP)
            replies = dict(zip(pieces, pipeline.execute(raise_on_error=False), strict=False))
            errors = [reply for reply in replies.values() if isinstance(reply, RedisError)]
            if errors and len(errors) == len(replies):
                raise errors[0]
        for maker, reply in replies.items():
            if isinstance(reply, RedisError):  # its keys are broken, which delays no others
                logger.error("An answer in %r could not be written: %s.", maker.memory_id, type(reply).__name__)

    def read(self, maker: Maker, position: int) -> Sequence[Piece]:
        with _reached():
            key = _pieces(maker.memory_id, maker.answer_id)
            stored = cast("list[str]", self._redis.zrangebyscore(key, position, "+inf"))
        return [Piece(int(at), data) for at, _, data in (each.partition(":") for each in stored)]

    def memory_ids(self) -> Iterable[str]:
        before, after = _answers("\0").split("\0")
        with _reached():
            for key in self._redis.scan_iter(f"{before}*{after}", count=1_000):
                yield key.removeprefix(before).removesuffix(after)

    def forget(self, memory_ids: Collection[str], *, but: Collection[str] = ()) -> None:
        with _reached(), self._redis.pipeline(transaction=False) as pipeline:
            for memory_id in memory_ids:
                pipeline.smembers(_answers(memory_id))
            for memory_id, found in zip(memory_ids, pipeline.execute(), strict=True):
                for answer_id in found - set(but):
                    pipeline.delete(_pieces(memory_id, answer_id))
                    pipeline.srem(_answers(memory_id), answer_id)
            pipeline.execute()


@contextmanager
def _reached() -> Iterator[None]:
    """Raise ``StreamsUnavailableError`` for the errors of Redis, whose texts may contain its address."""
    try:
        yield
    except RedisError as exc:
        raise StreamsUnavailableError(f"Redis cannot keep the streams of answers: {type(exc).__name__}.") from exc


# The braces make Redis Cluster keep the keys of a conversation on the same node.


def _answers(memory_id: str) -> str:
    return f"chatmemory:{{{_schema()}{memory_id}}}:answers"


def _pieces(memory_id: str, answer_id: str) -> str:
    return f"chatmemory:{{{_schema()}{memory_id}}}:answer:{answer_id}"


def _schema() -> str:
    """Return the connection's schema, if the engine gives one to each tenant: they may have the same memory ids."""
    schema = getattr(connections[router.db_for_write(Conversation)], "schema_name", None)
    return f"{schema}:" if schema else ""


@cache
def _client(url: str) -> Redis:
    return Redis.from_url(
        url,
        decode_responses=True,
        encoding_errors="replace",
        socket_timeout=TIMEOUT,
        socket_connect_timeout=TIMEOUT,
        retry=Retry(NoBackoff(), 1),  # a connection may have been closed since it was used last
    )
