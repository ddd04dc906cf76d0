"""
Answers with two rounds of tools, in processes that are killed before their first, second, third … statement, and what
others make of them, in the database in ``DATABASE_URL``.

    python -m tests.database.chat.runs.killed FOLDER FIRST STEP

prints one line of JSON for each kill; every STEP-th from FIRST on, until a process is not killed any more. What the
tools do is in files in FOLDER.
"""

import asyncio
import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from uuid import uuid4

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
django.setup()

from django.conf import settings  # noqa: E402  # after the setup
from django.contrib.auth import get_user_model  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import connection, connections  # noqa: E402

from chatmemory_django.chat.answers.ui_stream import decoded  # noqa: E402
from chatmemory_django.chat.assistant import Assistant  # noqa: E402
from chatmemory_django.chat.model import ChatRequest  # noqa: E402
from chatmemory_django.chat.models import Run  # noqa: E402
from chatmemory_django.chat.orders import carried_on  # noqa: E402
from chatmemory_django.chat.runs import answers as answers_module  # noqa: E402
from chatmemory_django.chat.runs import following, writing  # noqa: E402
from chatmemory_django.chat.runs.answers import answers  # noqa: E402
from chatmemory_django.chat.runs.streams import Maker  # noqa: E402
from chatmemory_django.chat.runs.tables import DEAD_AFTER, before  # noqa: E402
from chatmemory_django.chat.ui_messages import to_ui_messages  # noqa: E402
from chatmemory_django.chat.work import ChatWork, Order  # noqa: E402
from chatmemory_django.messages import AiMessage, ToolExecutionResultMessage, UserMessage  # noqa: E402
from chatmemory_django.models import Conversation  # noqa: E402
from tests.database.chat.killing import in_child, kill_before  # noqa: E402
from tests.faces.chat.scripted import ScriptedModel, calling  # noqa: E402

answers_module.INTERVAL = following.INTERVAL = writing.INTERVAL = 0.01
folder = Path(sys.argv[1])


def next_message(request: ChatRequest) -> AiMessage:
    """Call the tool for the first and for the second amount, and then say what came of it."""
    results = [each for each in request.messages if isinstance(each, ToolExecutionResultMessage)]
    if len(results) < 2:
        return calling((f"call-{len(results)}", "pay", json.dumps({"amount": len(results)})), text="I pay now.")
    return AiMessage("Both are paid.")


def assistant(key: str) -> Assistant:
    def pay(amount: int) -> str:
        """Pay an amount."""
        with (folder / key).open("a") as file:
            file.write(f"{amount}\n")
        return "paid"

    return Assistant(ScriptedModel(next_message), tools=[pay])


async def heard(maker: Maker, pieces) -> list[dict]:
    return decoded("".join([piece async for piece in pieces]))


async def ask(key: str, owner) -> list[dict]:
    maker = Maker(key, str(owner.pk), uuid4().hex)
    order = Order(assistant(key), key, owner, UserMessage("Pay."), "question")
    answer = await answers().begin(maker, ChatWork(lambda: order, "", maker.answer_id), wait=30)
    return await heard(maker, answer.listen())


async def go_on(key: str, owner) -> dict:
    """Go on with what is left of the answer; ask again if it has no end."""
    settings.CHATMEMORY["CHAT"]["ASSISTANT"] = assistant(key)
    maker = await answers().find(key, str(owner.pk))
    stream = [] if maker is None else await heard(maker, answers().listen(maker, partial(carried_on, maker)))
    if not stream or stream[-1]["type"] != "finish":
        stream = await ask(key, owner)
    return {"stream": stream}


def look(number: int, owner, was_killed: bool) -> None:
    key = str(number)
    Run.objects.filter(active__isnull=False).update(lease=before(DEAD_AFTER + 1))
    found = asyncio.run(go_on(key, owner))
    conversation = Conversation.objects.get(memory_id=key)
    rows = list(conversation.history().order_by("sequence"))
    effects = (folder / key).read_text().split() if (folder / key).exists() else []
    found |= {
        "killed": was_killed,
        "effects": effects,
        "types": [row.type for row in rows],
        "stored": to_ui_messages(rows)[-1],
        "states": sorted(Run.objects.filter(conversation=conversation).values_list("state", flat=True)),
    }
    sys.stdout.write(json.dumps({"number": number, **found}) + "\n")
    sys.stdout.flush()


def main(first: int, step: int) -> None:
    if connection.vendor == "sqlite":
        call_command("migrate", verbosity=0)
    owner = get_user_model().objects.create(username=uuid4().hex)
    connections.close_all()
    number, code = first, -signal.SIGKILL
    while code == -signal.SIGKILL:

        def begin(number: int = number) -> None:
            kill_before(number)
            asyncio.run(ask(str(number), owner))

        code = in_child(begin)
        if in_child(partial(look, number, owner, code == -signal.SIGKILL)):
            raise RuntimeError(f"After statement {number}, nobody could go on.")
        number += step
    if code:
        raise RuntimeError(f"The answer ended with {code}.")


if __name__ == "__main__":
    main(int(sys.argv[2]), int(sys.argv[3]))
