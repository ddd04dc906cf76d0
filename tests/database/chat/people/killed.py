"""
People who take a conversation, answer in it and give it back, in processes that are killed before their first, second,
third … statement, and then after the last one; in the database in ``DATABASE_URL``.

    python -m tests.database.chat.people.killed VERB

prints one line of JSON for each kill: what there was of it, and what there is once it was done again, and the user has
looked on. In the conversation is a question, whose process was killed while it asked the model.
"""

import asyncio
import json
import os
import signal
import sys
from functools import partial
from uuid import uuid4

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
django.setup()

from django.conf import settings  # noqa: E402  # after the setup
from django.contrib.auth import get_user_model  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import connection, connections  # noqa: E402

from chatmemory_django.chat.assistant import Assistant  # noqa: E402
from chatmemory_django.chat.models import Run  # noqa: E402
from chatmemory_django.chat.orders import carried_on  # noqa: E402
from chatmemory_django.chat.people import answer_as  # noqa: E402
from chatmemory_django.chat.runs.answers import answers  # noqa: E402
from chatmemory_django.chat.runs.leases import HandedOverError  # noqa: E402
from chatmemory_django.chat.runs.streams import Maker  # noqa: E402
from chatmemory_django.chat.runs.tables import DEAD_AFTER, before  # noqa: E402
from chatmemory_django.chat.work import ChatWork, Order  # noqa: E402
from chatmemory_django.messages import UserMessage  # noqa: E402
from chatmemory_django.models import Conversation  # noqa: E402
from chatmemory_django.operations import give_back, hand_over  # noqa: E402
from chatmemory_django.signals import handed_over  # noqa: E402
from tests.database.chat.killing import die, in_child, kill_before  # noqa: E402
from tests.faces.chat.scripted import ScriptedModel  # noqa: E402

VERBS = {
    "hand_over": lambda conversation, staff: hand_over(conversation, staff),
    "answer_as": lambda conversation, staff: answer_as(conversation, staff, "I do.", client_message_id="a1"),
    "give_back": lambda conversation, _: give_back(conversation),
}


async def ask(key: str, owner, model: ScriptedModel) -> None:
    """Ask the question, once by its id, and wait for the answer."""
    order = Order(Assistant(model), key, owner, UserMessage("Who helps?"), "question")
    maker = Maker(key, str(owner.pk), uuid4().hex)
    answer = await answers().begin(maker, ChatWork(lambda: order, "", maker.answer_id), wait=30)
    async for _ in answer.listen():
        pass


async def look_on(key: str, owner, model: ScriptedModel) -> None:
    """Do what the user's page does: listen to the answer in progress, if there is one; then send the question again."""
    settings.CHATMEMORY["CHAT"]["ASSISTANT"] = Assistant(model)
    if (maker := await answers().find(key, str(owner.pk))) is not None:
        async for _ in answers().listen(maker, partial(carried_on, maker)):
            pass
    try:
        await ask(key, owner, model)
    except HandedOverError:
        return


def seen(key: str) -> dict:
    conversation = Conversation.objects.get(memory_id=key)
    return {
        "state": conversation.state,
        "person": conversation.person,
        "texts": [*conversation.history().order_by("sequence").values_list("text", flat=True)],
        "running": Run.objects.filter(conversation=conversation, active__isnull=False, is_stopping=False).count(),
    }


def look(key: str, owner, staff, verb: str, was_killed: bool) -> None:
    Run.objects.filter(active__isnull=False).update(lease=before(DEAD_AFTER + 1))
    model, first = ScriptedModel("The assistant does."), seen(key)
    VERBS[verb](Conversation.objects.get(memory_id=key), staff)
    done = seen(key)
    asyncio.run(look_on(key, owner, model))
    found = {"killed": was_killed, "first": first, "done": done, "last": seen(key), "requests": len(model.requests)}
    sys.stdout.write(json.dumps({"key": key, **found}) + "\n")
    sys.stdout.flush()


def begin(key: str, owner, staff, verb: str) -> None:
    Conversation.objects.create(memory_id=key, owner=owner)
    connections.close_all()
    if in_child(lambda: asyncio.run(ask(key, owner, ScriptedModel(lambda _: die())))) != -signal.SIGKILL:
        raise RuntimeError("The process that asks the model was not killed.")
    if verb == "give_back":
        hand_over(Conversation.objects.get(memory_id=key), staff)
    connections.close_all()


def main(verb: str) -> None:
    if connection.vendor == "sqlite":
        call_command("migrate", verbosity=0)
    users = get_user_model().objects
    owner, staff = users.create(username=uuid4().hex), users.create(username=uuid4().hex, is_staff=True)
    number = code = -signal.SIGKILL
    for number in range(1, 100):
        begin(key := f"{verb}-{number}", owner, staff, verb)
        is_last = code == 0

        def work(key: str = key, number: int = number, is_last: bool = is_last) -> None:
            conversation = Conversation.objects.get(memory_id=key)
            connections.close_all()
            if is_last:  # all is stored, but nobody hears of it
                handed_over.connect(die, weak=False)
            else:
                kill_before(number)
            VERBS[verb](conversation, staff)

        code = in_child(work)
        if in_child(partial(look, key, owner, staff, verb, code == -signal.SIGKILL)):
            raise RuntimeError(f"After statement {number}, nobody could go on.")
        if is_last:
            break


if __name__ == "__main__":
    main(sys.argv[1])
