"""What the demo loads: the conversations in the folder beside this file, and 7,168 real ones from chitchat-dataset."""

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
"""The names of the files in the folder, and what the conversations in them are called."""


class Transcript(NamedTuple):
    """A conversation that was had elsewhere."""

    memory_id: str
    title: str
    messages: list[ChatMessage]


def shipped() -> list[Transcript]:
    """The conversations that ship with the example, in the JSON of the codec."""
    return [
        Transcript(f"demo-{name}", title, messages_from_json((FOLDER / f"{name}.json").read_bytes()))
        for name, title in TITLES.items()
    ]


def chitchat() -> Iterator[Transcript]:
    """
    The conversations of chitchat-dataset, where two people talk: who speaks first is the user here, the other the AI.

    Every message is kept, the 33 empty ones too, and so are those that follow one of the same speaker. The title is
    the question that the two were given to talk about, if there was one. ``ModuleNotFoundError`` without the package.
    """
    # The package has a class that reads this file, but leaves it open and takes its encoding from the locale.
    dataset = files("chitchat_dataset").joinpath("dataset.json").read_bytes()
    for key, conversation in msgspec.json.decode(dataset, type=dict[str, _Conversation]).items():
        said = [message for turn in conversation.messages for message in turn]
        yield Transcript(
            f"chitchat-{key}",
            conversation.prompt[:255],
            [
                UserMessage(message.text) if message.sender == said[0].sender else AiMessage(message.text)
                for message in said
            ],
        )


class _Said(msgspec.Struct):
    text: str
    sender: str


class _Conversation(msgspec.Struct):
    messages: list[list[_Said]]
    prompt: str = ""
