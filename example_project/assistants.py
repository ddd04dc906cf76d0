"""The assistant of the example site, and its tools."""

from collections.abc import Callable

from django.contrib.auth.models import User
from django.db.models import F
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from chatmemory_django.chat.answers import recall
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.tools import Tool, ToolError
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Conversation, Message
from example_project.llm import IS_REAL, IS_TINY, model

WEATHER = {
    "bergen": "rain, 9 °C",
    "berlin": "cloudy, 14 °C",
    "kyoto": "sunny, 21 °C",
    "lisbon": "sunny, 24 °C",
    "london": "drizzle, 12 °C",
    "new york": "windy, 17 °C",
    "oslo": "snow, -2 °C",
    "paris": "fair, 16 °C",
    "vienna": "foggy, 8 °C",
}
SYSTEM_MESSAGE = (
    "You are the assistant of a demo. Answer briefly, in the language of the question, from what you are sent. Use "
    "tools where they help; if you do not know something, say so."
)
LONGEST_TITLE = 60
FOUND = 3
"""The maximum number of search results: the memory is small."""


def get_time() -> str:
    """Return the current date and time."""
    return timezone.localtime().strftime("It is %H:%M on %A, %d %B %Y (%Z).")


def get_weather(city: str) -> str:
    """
    Return the current weather in a city.

    Args:
        city: The name of the city, in English.

    """
    weather = WEATHER.get(city.strip().lower())
    if weather is None:
        raise ToolError(f"There is no weather report for {city}.")
    return f"The weather in {city}: {weather}."


def add(numbers: list[float]) -> str:
    """
    Return the sum of numbers.

    Args:
        numbers: The numbers to add.

    """
    return f"{' + '.join(f'{number:g}' for number in numbers)} = {sum(numbers):g}"


def search_conversation(text: str, owner: User | None, memory_id: str) -> str:
    """
    Search the messages of this conversation that are no longer in the memory.

    Args:
        text: Words that a message must contain, all of them.

    """
    left = Message.objects.filter(conversation__memory_id=memory_id).evicted()
    found = left.search(text, owner=owner, types=[MessageType.USER, MessageType.AI])[:FOUND]
    lines = [
        f"- message {row.sequence}, {'you' if row.type == MessageType.USER else 'I'}: {row.text[:200].splitlines()[0]}"
        for row in found
    ]
    return "\n".join(lines) or f"No evicted message contains all of these words: {text}."


def rename_conversation(title: str, owner: User | None, memory_id: str) -> str:
    """
    Give this conversation another title.

    Args:
        title: The new title: a few words.

    """
    conversations = Conversation.objects.filter(memory_id=memory_id, owner=owner)
    conversations.update(title=title[:LONGEST_TITLE], version=F("version") + 1)
    return f"This conversation is now called “{title[:LONGEST_TITLE]}”."


TOOLS: list[Callable[..., str] | Tool] = [
    get_time,
    get_weather,
    Tool(rename_conversation, needs_approval=True, asks=_("name this chat “{title}”")),
    *recall.tools(),
]

assistant = (
    Assistant(model, system_message="You are a helpful assistant.")
    if IS_TINY
    else Assistant(
        model,
        tools=TOOLS if IS_REAL else [*TOOLS, add, search_conversation],
        system_message=SYSTEM_MESSAGE,
    )
)
