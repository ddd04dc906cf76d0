"""The conversations that the demo loads: those in ``conversations/``, and 7,168 real ones from chitchat-dataset."""

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import msgspec

from chatmemory_django.codec import messages_from_json
from chatmemory_django.messages import AiMessage, ChatMessage, UserMessage

FOLDER = Path(__file__).parent / "conversations"

TITLES = {
    "parcel": "Where is my parcel?",
    "night-train": "Vienna by night train",
    "basil": "What is wrong with my basil?",
    "kyoto": "京都で過ごす秋の二日間",
    "bread": "Twelve weeks of bread",
}
"""The names of the files in the folder, and the titles of their conversations."""


class Transcript(NamedTuple):
    """A conversation to load."""

    memory_id: str
    title: str
    messages: list[ChatMessage]


def shipped() -> list[Transcript]:
    """Return the conversations that ship with the example, in the codec's JSON."""
    return [
        Transcript(f"demo-{name}", title, messages_from_json((FOLDER / f"{name}.json").read_bytes()))
        for name, title in TITLES.items()
    ]


def chitchat() -> Iterator[Transcript]:
    """
    Yield the conversations of chitchat-dataset between two people: the first speaker is the user, the other one the AI.

    All messages are kept, including 33 empty ones, and so are consecutive messages of one speaker. The title is the
    question that the two were given as a topic, if there was one. Raises ``ModuleNotFoundError`` without the package.
    """
    # The package has a class that reads this file, but leaves it open and uses the locale's encoding.
    dataset = files("chitchat_dataset").joinpath("dataset.json").read_bytes()
    for key, conversation in msgspec.json.decode(dataset, type=dict[str, _Conversation]).items():
        lines = [message for turn in conversation.messages for message in turn]
        yield Transcript(
            f"chitchat-{key}",
            conversation.prompt[:255],
            [
                UserMessage(message.text) if message.sender == lines[0].sender else AiMessage(message.text)
                for message in lines
            ],
        )


class _Line(msgspec.Struct):
    text: str
    sender: str


class _Conversation(msgspec.Struct):
    messages: list[list[_Line]]
    prompt: str = ""
