"""The streams of answers in Redis, for ``CHATMEMORY["CHAT"]["STREAMS"]``."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any, cast

from chatmemory_django import conf
from chatmemory_django.chat.streams import DEAD_AFTER, KEEP, Maker, Piece, Streams

try:
    from redis import Redis
except ImportError as exc:
    raise ImportError("RedisStreams requires redis: pip install 'chatmemory_django[redis]'.") from exc

_DEAD_AFTER_MS = round(DEAD_AFTER * 1000)
_KEEP = round(KEEP)

_BEGIN = """
local left = redis.call('PTTL', KEYS[1])
if left > 0 then return left end
redis.call('HSET', KEYS[1], 'answer', ARGV[1], 'owner', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', ARGV[4] - ARGV[5])
redis.call('ZADD', KEYS[2], ARGV[4], ARGV[1])
redis.call('EXPIRE', KEYS[2], ARGV[5])
return 0
"""
"""Take the lease; if another answer holds it, return the milliseconds until it expires."""

_WRITE = """
if redis.call('HGET', KEYS[1], 'answer') ~= ARGV[1] then return -1 end
if ARGV[4] ~= '' and redis.call('LLEN', KEYS[2]) == tonumber(ARGV[3]) then
    redis.call('RPUSH', KEYS[2], ARGV[4])
end
redis.call('EXPIRE', KEYS[2], ARGV[5])
redis.call('ZADD', KEYS[3], ARGV[6], ARGV[1])
redis.call('EXPIRE', KEYS[3], ARGV[5])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return redis.call('HEXISTS', KEYS[1], 'stop')
"""
"""
Append a piece, once even if this is retried, and renew the lease; return whether the answer has to stop, or -1 if it
has no lease.
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
        left = self._run(_BEGIN, keys, maker.answer_id, maker.owner_key, _DEAD_AFTER_MS, round(time.time()), _KEEP)
        return None if left == 0 else (_DEAD_AFTER_MS - left) / 1000

    def write(self, pieces: Mapping[Maker, Piece]) -> set[Maker]:
        now = round(time.time())
        with self._redis.pipeline(transaction=False) as pipeline:
            for maker, (position, data) in pieces.items():
                keys = [_lease(maker.memory_id), _pieces(maker), _answers(maker.memory_id)]
                values: list[str | int] = [maker.answer_id, _DEAD_AFTER_MS, position, data, _KEEP, now]
                pipeline.eval(_WRITE, len(keys), *keys, *values)
            replies = dict(zip(pieces, pipeline.execute(), strict=True))
        # An answer loses its lease to another one, after a pause in which the process could not write, or to an erase.
        return {
            maker
            for maker, reply in replies.items()
            if reply == 1 or (reply == -1 and self._redis.exists(_erased(maker.answer_id)))
        }

    def end(self, maker: Maker, last: Piece) -> None:
        self.write({maker: last})
        self._run(_END, [_lease(maker.memory_id)], maker.answer_id)

    def find(self, memory_id: str, owner_key: str) -> Maker | None:
        lease = cast("dict[str, str]", self._redis.hgetall(_lease(memory_id)))
        return Maker(memory_id, owner_key, lease["answer"]) if lease.get("owner") == owner_key else None

    def read(self, maker: Maker, position: int) -> tuple[Sequence[str], bool]:
        is_running = self.find(maker.memory_id, maker.owner_key) == maker  # checked first, to miss no last piece
        return cast("list[str]", self._redis.lrange(_pieces(maker), position, -1)), is_running

    def stop(self, maker: Maker) -> None:
        self._run(_STOP, [_lease(maker.memory_id)], maker.answer_id)

    def forget(self, memory_ids: Collection[str], *, erased: bool) -> None:
        with self._redis.pipeline(transaction=False) as pipeline:
            for memory_id in memory_ids:
                keys = [_lease(memory_id), _answers(memory_id)]
                pipeline.eval(_FORGET, len(keys), *keys, int(erased), _pieces(Maker(memory_id, "", "")))
            forgotten = [answer_id for reply in pipeline.execute() for answer_id in reply]
            if erased:
                for answer_id in forgotten:  # those that are in progress find it when they write again, and stop
                    pipeline.set(_erased(answer_id), "", ex=_KEEP)
                pipeline.execute()

    def _run(self, script: str, keys: Sequence[str], *values: str | int) -> Any:
        return self._redis.eval(script, len(keys), *keys, *map(str, values))


# The braces make Redis Cluster keep the keys of a conversation on the same node.


def _lease(memory_id: str) -> str:
    return f"chatmemory:{{{memory_id}}}:lease"


def _answers(memory_id: str) -> str:
    return f"chatmemory:{{{memory_id}}}:answers"


def _pieces(maker: Maker) -> str:
    return f"chatmemory:{{{maker.memory_id}}}:answer:{maker.answer_id}"


def _erased(answer_id: str) -> str:
    return f"chatmemory:erased:{answer_id}"


@cache
def _client(url: str) -> Redis:
    return Redis.from_url(url, decode_responses=True)
