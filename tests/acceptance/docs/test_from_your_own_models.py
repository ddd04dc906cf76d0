"""The command of from-your-own-models.md moves the chats of a site with these models, and once only."""

import pytest

from tests.acceptance.docs.pages import block_of, site

__all__ = ["site"]  # a fixture

CODE = """
import io
from datetime import UTC, datetime, timedelta
from django.core.management import CommandError
from django.db import connection
from chatmemory_django.models import Message
from talks.models import Chat, Entry

with connection.schema_editor() as editor:
    editor.create_model(Chat)
    editor.create_model(Entry)

anna, ben = (get_user_model().objects.create_user(name) for name in ("anna", "ben"))
BEGUN = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
ROLES = ("system", "user", "assistant", "user")
for number in range(110):
    user = (anna, ben)[number % 2]
    chat = Chat.objects.create(user=user, name=f"{number} " * 99, model="gpt-4o", created_at=BEGUN)
    Entry.objects.bulk_create(
        Entry(chat=chat, role=role, content=f"{number} {index}", created_at=BEGUN + timedelta(minutes=index))
        for index, role in enumerate(ROLES)
    )
    Entry.objects.create(chat=chat, role="assistant", content="", created_at=BEGUN)

def move():
    out, err = io.StringIO(), io.StringIO()
    try:
        call_command("move_chats", stdout=out, stderr=err)
    except CommandError as error:
        return out.getvalue(), f"{err.getvalue()}{error}"
    return out.getvalue(), err.getvalue()

assert move() == ("{'STORED': 110}\\n", ""), move()
assert move() == ("{'PRESENT': 110}\\n", ""), move()
last = Conversation.objects.get(memory_id=f"chat-{chat.pk}")
assert (last.owner, last.title, last.metadata) == (ben, ("109 " * 99)[:255], {"model": "gpt-4o"}), last
assert (last.created_at, last.updated_at) == (BEGUN, BEGUN + timedelta(minutes=3))
rows = list(last.history().values_list("type", "text", "created_at"))
kinds = ("SYSTEM", "USER", "AI", "USER")
assert rows == [(kind, f"109 {n}", BEGUN + timedelta(minutes=n)) for n, kind in enumerate(kinds)], rows
assert Conversation.objects.owned_by(anna).count() == 55

Entry.objects.create(chat=chat, role="user", content="new", tokens=7, created_at=BEGUN + timedelta(days=1))
get_chat_memory("chat-1").add(UserMessage("from the site"))
Entry.objects.create(chat_id=1, role="user", content="secret", created_at=BEGUN + timedelta(days=1))
moved, refused = move()
assert moved == "{'REFUSED': 1, 'PRESENT': 108, 'CONTINUED': 1}\\n", moved
assert refused == "'chat-1': Its message 5 differs from the stored one.\\n1 chats were not moved.", refused
assert last.history().last().metadata == {"tokens": 7}
call_command("check_chatmemory", verbosity=0)
"""


@pytest.mark.slow
def test_the_command_of_the_page_moves_the_chats_of_its_models(site):
    files = {
        "talks/__init__": "",
        "talks/models": block_of("from-your-own-models.md", "class Chat("),
        "talks/management/__init__": "",
        "talks/management/commands/__init__": "",
        "talks/management/commands/move_chats": block_of("from-your-own-models.md", "class Command("),
    }
    site('INSTALLED_APPS = [*INSTALLED_APPS, "talks"]\n', CODE, **files)
