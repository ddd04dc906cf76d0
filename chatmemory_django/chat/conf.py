"""What the chat reads of ``CHATMEMORY``."""

from typing import Annotated, Literal, TypeAlias, get_args

from chatmemory_django.conf import Count, Rate, Threads, Whole, one_of, path_of
from chatmemory_django.messages import DetailLevel

Generates: TypeAlias = Literal["web", "worker"]
"""Which process generates the answers: the one that was asked, or any that runs ``run_chatmemory``."""

Left: TypeAlias = Literal["stop", "wait", "refuse"]
"""What a question does to an answer in progress that nobody listens to any more."""

COST_DIGITS, COST_PLACES = 20, 10
"""How many digits a stored cost has, and how many of them behind the point: one token can cost 0.00000003."""

_RATE = "chatmemory.E033"


class Chat(Threads):
    """``CHAT``: the settings of the chat over HTTP."""

    ids = ("chatmemory.E031", "chatmemory.W031", "chatmemory.E032")
    hint = 'Write "CHAT": {"ASSISTANT": "mysite.assistants.assistant"}, for example.'

    ASSISTANT: object = None
    RUNS: Annotated[
        Generates,
        one_of(*get_args(Generates), hint="It is which process generates answers; the default is 'web'."),
        "chatmemory.E043",
    ] = "web"
    STREAMS: Annotated[str, path_of("chatmemory_django.chat.runs.streams.Streams"), "chatmemory.E035"] = (
        "chatmemory_django.chat.runs.streams.DatabaseStreams"
    )
    REDIS_URL: str = "redis://127.0.0.1:6379/0"
    WAIT_SECONDS: Whole = 0
    LEFT: Annotated[
        Left,
        one_of(
            *get_args(Left),
            hint="It is what a question does to an answer that nobody listens to any more; the default is 'stop'.",
        ),
        "chatmemory.E046",
    ] = "stop"
    GREETING: object = None
    """A text, which may be lazy, a function of a request that returns one, or its path."""
    MAX_BODY_BYTES: Count = 16 * 1024 * 1024
    MAX_TEXT_LENGTH: Count = 100_000
    MAX_PARTS: Count = 20
    IMAGE_DETAIL: Annotated[
        str,
        one_of(*DetailLevel.__members__, hint="OpenAI supports LOW, HIGH and AUTO, the default."),
        "chatmemory.E036",
    ] = "AUTO"
    MAX_MESSAGES: Count = 500
    MAX_STREAMS: Count = 20
    MAX_ANSWERS: Count = 5
    END_SECONDS: Count = 30
    RUN_SECONDS: Count = 7 * 24 * 60 * 60
    APPROVAL_SECONDS: Count = 24 * 60 * 60
    THROTTLE_RATE: Annotated[Rate, _RATE] = "60/min"
    READ_THROTTLE_RATE: Annotated[Rate, _RATE] = "600/min"

    @property
    def has_workers(self) -> bool:
        """Whether workers generate the answers, and not the processes that are asked."""
        return self.RUNS == "worker"


chat_settings = Chat.current
