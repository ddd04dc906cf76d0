"""The streams of answers in Redis, for ``CHATMEMORY["CHAT"]["STREAMS"]``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, cast

from chatmemory_django import conf
from chatmemory_django.chat.streams import DEAD_AFTER, KEEP, Maker, Piece, Streams

try:
    from redis import Redis
except ImportError as exc:
    raise ImportError("RedisStreams requires redis: pip install 'chatmemory_django[redis]'.") from exc

_DEAD_AFTER_MS = round(DEAD_AFTER * 1000)

_BEGIN = """
local left = redis.call('PTTL', KEYS[1])
if left > 0 then return left end
redis.call('HSET', KEYS[1], 'answer', ARGV[1], 'owner', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 0
"""
"""Take the lease; if another answer holds it, return the milliseconds until it expires."""

_WRITE = """
if ARGV[4] ~= '' and redis.call('LLEN', KEYS[2]) == tonumber(ARGV[3]) then
    redis.call('RPUSH', KEYS[2], ARGV[4])
    redis.call('EXPIRE', KEYS[2], ARGV[5])
end
if redis.call('HGET', KEYS[1], 'answer') ~= ARGV[1] then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return redis.call('HEXISTS', KEYS[1], 'stop')
"""
"""Append a piece, once even if this is retried, and renew the lease; return whether the answer has to stop."""

_END = "if redis.call('HGET', KEYS[1], 'answer') == ARGV[1] then redis.call('DEL', KEYS[1]) end"

_STOP = "if redis.call('HGET', KEYS[1], 'answer') == ARGV[1] then redis.call('HSET', KEYS[1], 'stop', 1) end"


class RedisStreams(Streams):
    """
    Streams in Redis, at ``CHATMEMORY["CHAT"]["REDIS_URL"]``.

    Each conversation with an answer in progress has a lease: a hash that expires unless the process renews it. Each
    answer has a list of pieces.
    """

    def __init__(self) -> None:
        self._redis = _client(conf.chat()["REDIS_URL"])

    def begin(self, maker: Maker) -> float | None:
        left = self._run(_BEGIN, [_lease(maker)], maker.answer_id, maker.owner_key, _DEAD_AFTER_MS)
        return None if left == 0 else (_DEAD_AFTER_MS - left) / 1000

    def write(self, pieces: Mapping[Maker, Piece]) -> set[Maker]:
        with self._redis.pipeline(transaction=False) as pipeline:
            for maker, (position, data) in pieces.items():
                values: list[str | int] = [maker.answer_id, _DEAD_AFTER_MS, position, data, round(KEEP)]
                pipeline.eval(_WRITE, 2, _lease(maker), _pieces(maker), *values)
            replies = pipeline.execute()
        return {maker for maker, is_stopping in zip(pieces, replies, strict=True) if is_stopping}

    def end(self, maker: Maker, last: Piece) -> None:
        self.write({maker: last})
        self._run(_END, [_lease(maker)], maker.answer_id)

    def find(self, memory_id: str, owner_key: str) -> Maker | None:
        lease = cast("dict[str, str]", self._redis.hgetall(_lease(Maker(memory_id, owner_key, ""))))
        return Maker(memory_id, owner_key, lease["answer"]) if lease.get("owner") == owner_key else None

    def read(self, maker: Maker, position: int) -> tuple[Sequence[str], bool]:
        is_running = self.find(maker.memory_id, maker.owner_key) == maker  # checked first, to miss no last piece
        return cast("list[str]", self._redis.lrange(_pieces(maker), position, -1)), is_running

    def stop(self, maker: Maker) -> None:
        self._run(_STOP, [_lease(maker)], maker.answer_id)

    def _run(self, script: str, keys: Sequence[str], *values: str | int) -> Any:
        return self._redis.eval(script, len(keys), *keys, *map(str, values))


# The braces make Redis Cluster keep both keys on the same node.


def _lease(maker: Maker) -> str:
    return f"chatmemory:{{{maker.memory_id}}}:lease"


def _pieces(maker: Maker) -> str:
    return f"chatmemory:{{{maker.memory_id}}}:answer:{maker.answer_id}"


@cache
def _client(url: str) -> Redis:
    return Redis.from_url(url, decode_responses=True)
