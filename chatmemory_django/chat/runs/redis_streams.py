"""The streams of answers in Redis, for ``CHATMEMORY["CHAT"]["STREAMS"]``."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, cast

from chatmemory_django import conf
from chatmemory_django.chat.runs.streams import DEAD_AFTER, KEEP, Maker, Piece, Streams, StreamsUnavailableError

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

_DEAD_AFTER = round(DEAD_AFTER)
_DEAD_AFTER_MS = round(DEAD_AFTER * 1000)
_KEEP = round(KEEP)

_BEGIN = """
local left = redis.call('PTTL', KEYS[1])
if left > 0 and redis.call('HGET', KEYS[1], 'answer') ~= ARGV[1] then return left end
redis.call('HSET', KEYS[1], 'answer', ARGV[1], 'owner', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
local now = redis.call('TIME')[1]
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - ARGV[4])
redis.call('ZADD', KEYS[2], now, ARGV[1])
redis.call('EXPIRE', KEYS[2], ARGV[4])
return 0
"""
"""Take the lease, even if this is retried; if another answer holds it, return the milliseconds until it expires."""

_WRITE = """
if redis.call('HGET', KEYS[1], 'answer') ~= ARGV[1] then return -1 end
if ARGV[4] ~= '' then
    for _ = redis.call('LLEN', KEYS[2]) + 1, tonumber(ARGV[3]) do redis.call('RPUSH', KEYS[2], '') end
    if redis.call('LLEN', KEYS[2]) == tonumber(ARGV[3]) then redis.call('RPUSH', KEYS[2], ARGV[4]) end
end
redis.call('EXPIRE', KEYS[2], ARGV[5])
redis.call('ZADD', KEYS[3], redis.call('TIME')[1], ARGV[1])
redis.call('EXPIRE', KEYS[3], ARGV[5])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return redis.call('HEXISTS', KEYS[1], 'stop')
"""
"""
Append a piece, once even if this is retried, and renew the lease; return whether the answer has to stop, or -1 if it
has no lease. Empty pieces stand for those that Redis has lost.
"""

_FORGET = """
local forgotten = {}
local running = redis.call('HGET', KEYS[1], 'answer')
for _, answer in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
    if ARGV[1] == '1' or answer ~= running then
        redis.call('DEL', ARGV[2] .. answer)
        redis.call('ZREM', KEYS[2], answer)
        table.insert(forgotten, answer)
    end
end
if ARGV[1] == '1' then redis.call('DEL', KEYS[1]) end
return forgotten
"""
"""Delete the pieces of the answers in a conversation, and return their ids: all of them, or those without a lease."""

_NOTE = """
local now = redis.call('TIME')[1]
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. now - ARGV[1])
for answer = 2, #ARGV do redis.call('ZADD', KEYS[1], now, ARGV[answer]) end
redis.call('EXPIRE', KEYS[1], ARGV[1])
return redis.call('ZCARD', KEYS[1])
"""
"""Note that answers of an owner are in progress, if any are given; return how many are."""

_END = "if redis.call('HGET', KEYS[1], 'answer') == ARGV[1] then redis.call('DEL', KEYS[1]) end"

_STOP = "if redis.call('HGET', KEYS[1], 'answer') == ARGV[1] then redis.call('HSET', KEYS[1], 'stop', 1) end"


class RedisStreams(Streams):
    """
    Streams in Redis, at ``CHATMEMORY["CHAT"]["REDIS_URL"]``.

    Each conversation with an answer in progress has a lease: a hash that expires unless the process renews it. Each
    answer has a list of pieces, and each conversation the ids of its latest answers, to find these lists when it is
    erased. Everything expires by itself.
    """

    def __init__(self) -> None:
        self._redis = _client(conf.chat()["REDIS_URL"])

    def begin(self, maker: Maker) -> float | None:
        keys = [_lease(maker.memory_id), _answers(maker.memory_id)]
        left: int = self._run(_BEGIN, keys, maker.answer_id, maker.owner_key, _DEAD_AFTER_MS, _KEEP)
        if left != 0:
            return (_DEAD_AFTER_MS - left) / 1000
        self._run(_NOTE, [_in_progress(maker.owner_key)], _DEAD_AFTER, maker.answer_id)
        return None

    def write(self, pieces: Mapping[Maker, Piece]) -> set[Maker]:
        replies = self._written(pieces)
        stopping = {maker for maker, reply in replies.items() if reply == 1}
        # An answer loses its lease to another one, after a pause in which the process could not write; to an erase; or
        # because Redis has lost it: then it is taken again.
        for maker in [maker for maker, reply in replies.items() if reply == -1]:
            with _reached():
                is_erased = bool(self._redis.exists(_erased(maker.answer_id)))
            if is_erased:
                stopping.add(maker)
            elif self.begin(maker) is None:
                self._written({maker: pieces[maker]})
        return stopping

    def _written(self, pieces: Mapping[Maker, Piece]) -> dict[Maker, int | None]:
        """Write *pieces*, and return the replies; None for an answer whose keys are broken, which delays no others."""
        by_owner: defaultdict[str, list[str]] = defaultdict(list)
        with _reached(), self._redis.pipeline(transaction=False) as pipeline:
            for maker, (position, data) in pieces.items():
                keys = [_lease(maker.memory_id), _pieces(maker), _answers(maker.memory_id)]
                values: list[str | int] = [maker.answer_id, _DEAD_AFTER_MS, position, data, _KEEP]
                pipeline.eval(_WRITE, len(keys), *keys, *values)
                by_owner[maker.owner_key].append(maker.answer_id)
            for owner_key, answer_ids in by_owner.items():
                pipeline.eval(_NOTE, 1, _in_progress(owner_key), _DEAD_AFTER, *answer_ids)
            replies = dict(zip(pieces, pipeline.execute(raise_on_error=False), strict=False))
            errors = [reply for reply in replies.values() if isinstance(reply, RedisError)]
            if errors and len(errors) == len(replies):
                raise errors[0]
        for maker, reply in replies.items():
            if isinstance(reply, RedisError):
                logger.error("An answer in %r could not be written: %s.", maker.memory_id, type(reply).__name__)
        return {maker: reply if isinstance(reply, int) else None for maker, reply in replies.items()}

    def end(self, maker: Maker, last: Piece) -> None:
        self.write({maker: last})
        self._run(_END, [_lease(maker.memory_id)], maker.answer_id)
        with _reached():
            self._redis.zrem(_in_progress(maker.owner_key), maker.answer_id)

    def find(self, memory_id: str, owner_key: str) -> Maker | None:
        with _reached():
            lease = cast("dict[str, str]", self._redis.hgetall(_lease(memory_id)))
        return Maker(memory_id, owner_key, lease["answer"]) if lease.get("owner") == owner_key else None

    def running(self, owner_key: str) -> int:
        count: int = self._run(_NOTE, [_in_progress(owner_key)], _DEAD_AFTER)
        return count

    def read(self, maker: Maker, position: int) -> tuple[Sequence[str], bool]:
        is_running = self.find(maker.memory_id, maker.owner_key) == maker  # checked first, to miss no last piece
        with _reached():
            pieces = cast("list[str]", self._redis.lrange(_pieces(maker), position, -1))
        if position == 0 and pieces[:1] == [""]:
            return [], is_running  # without its beginning, no client can read a stream
        return pieces, is_running

    def stop(self, maker: Maker) -> None:
        self._run(_STOP, [_lease(maker.memory_id)], maker.answer_id)

    def forget(self, memory_ids: Collection[str], *, erased: bool) -> None:
        with _reached(), self._redis.pipeline(transaction=False) as pipeline:

            def forget() -> None:
                for memory_id in memory_ids:
                    keys = [_lease(memory_id), _answers(memory_id)]
                    pipeline.eval(_FORGET, len(keys), *keys, int(erased), _pieces(Maker(memory_id, "", "")))

            forget()
            forgotten = [answer_id for reply in pipeline.execute() for answer_id in reply]
            if erased and forgotten:
                for answer_id in forgotten:  # those that are in progress find it when they write again, and stop
                    pipeline.set(_erased(answer_id), "", ex=_KEEP)
                forget()  # one that wrote in between has taken its lease again
                pipeline.execute()

    def _run(self, script: str, keys: Sequence[str], *values: str | int) -> Any:
        with _reached():
            return self._redis.eval(script, len(keys), *keys, *map(str, values))


@contextmanager
def _reached() -> Iterator[None]:
    """Raise ``StreamsUnavailableError`` for the errors of Redis, whose texts may contain its address."""
    try:
        yield
    except RedisError as exc:
        raise StreamsUnavailableError(f"Redis cannot keep the streams of answers: {type(exc).__name__}.") from exc


# The braces make Redis Cluster keep the keys of a conversation on the same node.


def _lease(memory_id: str) -> str:
    return f"chatmemory:{{{memory_id}}}:lease"


def _answers(memory_id: str) -> str:
    return f"chatmemory:{{{memory_id}}}:answers"


def _pieces(maker: Maker) -> str:
    return f"chatmemory:{{{maker.memory_id}}}:answer:{maker.answer_id}"


def _in_progress(owner_key: str) -> str:
    """Return the key of the ids of the answers in progress of an owner, by when they were last written."""
    return f"chatmemory:owner:{owner_key}:answers"


def _erased(answer_id: str) -> str:
    return f"chatmemory:erased:{answer_id}"


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
