"""The assistant of the example site, with tools that run in the pages of ``page/`` and ``tree.mjs``."""

from django.http import HttpRequest

from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.tools import Tool
from example_project.assistants import SYSTEM_MESSAGE, TOOLS, model


def get_time_zone() -> str:
    """Return the name of the user's time zone."""


def get_location(precise: bool = False) -> dict[str, float]:
    """
    Return where the user is.

    Args:
        precise: Whether a few meters matter.
    """


def assistant(request: HttpRequest) -> Assistant:
    """Return it for any request."""
    in_browser = [Tool(function, runs_in="client") for function in (get_time_zone, get_location)]
    return Assistant(model, tools=[*TOOLS, *in_browser], system_message=SYSTEM_MESSAGE)
