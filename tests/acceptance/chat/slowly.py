"""An assistant that takes its time, and whose tool has an effect: a line in the file ``EFFECTS``."""

import os
from pathlib import Path

from benchmarks.chat.model import Clock
from chatmemory_django.chat.assistant import Assistant


def look(at: str) -> str:
    """Return what is visible."""
    with Path(os.environ["EFFECTS"]).open("a") as file:
        file.write(f"{at}\n")
    return "It is noon."


assistant = Assistant(Clock(), tools=[look])
