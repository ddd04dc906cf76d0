"""Use the installed package as a new site would: one file, an SQLite database, a conversation."""

import importlib
import tempfile
from importlib.resources import files
from pathlib import Path

import django
from django.conf import settings
from django.core.management import call_command

settings.configure(
    INSTALLED_APPS=[
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "chatmemory_django",
        "chatmemory_django.chat",
        "chatmemory_django.chat.page",
    ],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": Path(tempfile.mkdtemp()) / "db.sqlite3",
            "OPTIONS": {"transaction_mode": "IMMEDIATE"},
        }
    },
    CHATMEMORY={
        "MEMORY": {
            "CLASS": "chatmemory_django.memory.TokenWindowChatMemory",
            "OPTIONS": {"max_tokens": 100, "token_count_estimator": "gpt-4o-mini"},
        },
        "ALLOW_NETWORK": False,
    },
    SILENCED_SYSTEM_CHECKS=["chatmemory.W032"],  # no assistant: its extra is not installed here
)
django.setup()

from chatmemory_django.messages import SystemMessage, UserMessage  # noqa: E402  # after the setup
from chatmemory_django.models import Conversation  # noqa: E402
from chatmemory_django.provider import get_chat_memory  # noqa: E402

for file in [
    "py.typed",
    "chat/migrations/0001_initial.py",
    "locale/de/LC_MESSAGES/django.mo",
    "contrib/adapters/records/migrations/0001_initial.py",
    "static/chatmemory/admin.css",
    "chat/page/static/chatmemory_page/page.css",
    "chat/page/static/chatmemory_page/page.js",
    "chat/page/templates/chatmemory_page/page.html",
    "chat/page/templatetags/chatmemory_page.py",
    "templates/admin/chatmemory/conversation/transcript.html",
]:
    if not files("chatmemory_django").joinpath(file).is_file():
        raise SystemExit(f"The wheel does not contain {file}.")
call_command("check", fail_level="WARNING")
call_command("migrate", verbosity=0)
memory = get_chat_memory("wheel")
memory.add(SystemMessage("Be brief."), *(UserMessage(f"This is message number {number}.") for number in range(50)))
messages = memory.messages()
stored = Conversation.objects.get(memory_id="wheel").history().count()
if not (stored == 51 and 2 < len(messages) < 12 and messages[0] == SystemMessage("Be brief.")):
    raise SystemExit(f"{stored} messages stored, {len(messages)} in memory; expected 51 stored and 3 to 11 in memory.")
for module, extra in {"rest.urls": "rest", "chat.assistant": "openai", "chat.openai": "openai"}.items():
    try:
        importlib.import_module(f"chatmemory_django.{module}")
    except ImportError as exc:
        if f"pip install 'chatmemory_django[{extra}]'" not in str(exc):
            raise
    else:
        raise SystemExit(f"Importing {module} succeeded without its extra.")
print(f"The wheel works: {stored} messages stored, {len(messages)} in memory.")  # noqa: T201
