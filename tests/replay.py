"""Recorded runs of LangChain4j's windows, and the code that replays them on a store."""

from collections.abc import Callable

import pytest

from chatmemory_django.memory import ChatMemory, MessageWindowChatMemory, TokenWindowChatMemory
from chatmemory_django.messages import ChatMessage
from chatmemory_django.stores import ChatMemoryStore
from tests.estimators import JOINT, WORDS, Words
from tests.vectors import load_vectors, message_from_description


def recorded(name: str) -> list:
    recording = load_vectors(f"{name}.json")
    pool = {key: message_from_description(value) for key, value in recording["pool"].items()}
    return [pytest.param(trace, pool, id=trace["id"]) for trace in recording["traces"]]


class Limit:
    """A limit that changes as recorded."""

    def __init__(self, config: dict) -> None:
        self.kind = config["kind"]
        self.value = config["values"][0] if self.kind == "schedule" else config.get("value", config.get("initial"))

    def __call__(self, memory_id: object) -> int:
        return self.value


def build(trace: dict, store: Callable[[object], ChatMemoryStore], limit: Limit, words: Words) -> ChatMemory:
    config = trace["config"]
    options = {"store": store(config["id"]), "id": config["id"]}
    if config["always_keep_system_message_first"] is not None:
        options["always_keep_system_message_first"] = config["always_keep_system_message_first"]
    given = limit.value if limit.kind == "static" else limit
    if "estimator" in config:
        estimator = {"words": words, "joint": JOINT}[config["estimator"]]
        return TokenWindowChatMemory(max_tokens=given, token_count_estimator=estimator, **options)
    return MessageWindowChatMemory(max_messages=given, **options)


def take(memory: ChatMemory, step: dict, pool: dict[str, ChatMessage]) -> None:
    match step["op"]:
        case "add":
            memory.add(pool.get(step["message"]))
        case "add_many":
            memory.add(*(pool.get(key) for key in step["messages"] or ()))
        case "set":
            memory.set([pool.get(key) for key in step["messages"]])
        case "clear":
            memory.clear()
        case "read":
            memory.messages()


def replay(
    trace: dict, pool: dict[str, ChatMessage], store: Callable[[object], ChatMemoryStore], words: Words = WORDS
) -> None:
    limit = Limit(trace["config"].get("max_messages") or trace["config"]["max_tokens"])
    if trace["build_error"] is not None:
        with pytest.raises(ValueError, match=r"max_(messages|tokens) must be a whole number above 0"):
            build(trace, store, limit, words)
        return
    memory = build(trace, store, limit, words)
    for number, step in enumerate(trace["steps"]):
        where = f"{trace['id']}, step {number}"
        if limit.kind != "static":
            limit.value = step["max"]
        expected = step["expect"]
        if step["op"] == "set" and expected["error"] and "null or empty" in expected["error"]["message"]:
            continue  # Python has a single form of set, and an empty list stores an empty memory.
        if "null_message" in trace["tags"]:  # In Python, None is not a message.
            with pytest.raises(TypeError, match="must be a message, not NoneType"):
                take(memory, step, pool)
            assert memory.messages() == []
            return
        if expected["error"] is None:
            take(memory, step, pool)
        else:
            with pytest.raises(ValueError, match="must be a whole number above 0"):
                take(memory, step, pool)
        if expected["messages_error"] is None:
            assert memory.messages() == [pool[key] for key in expected["messages"]], where
        else:
            with pytest.raises(ValueError, match="must be a whole number above 0"):
                memory.messages()
        assert memory.store.get_messages(memory.id) == [pool[key] for key in expected["store"]], where
