"""Request every admin page under django-unfold: ``test_admin_unfold`` runs this in its own process."""

import json
import os
import sys

import django
from django.conf import settings

os.environ.setdefault("DEBUG", "1")
os.environ["DJANGO_SETTINGS_MODULE"] = "example_project.settings"
os.environ["DATABASE_URL"] = "sqlite://:memory:"
settings.INSTALLED_APPS = ["unfold", *settings.INSTALLED_APPS]
settings.ALLOWED_HOSTS = ["testserver"]
django.setup()

from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client

from chatmemory_django.messages import AiMessage, ToolExecutionRequest, UserMessage
from chatmemory_django.models import Conversation
from tests.faces.admin.admin_site import conversation, page

call_command("migrate", verbosity=0)
client = Client()
client.force_login(User.objects.create_superuser("root"))
talk = conversation(
    UserMessage("Will it rain?"),
    AiMessage("Let me see", tool_execution_requests=[ToolExecutionRequest("1", "forecast", "{}")]),
    title="The weather",
)
pages = {}
for name, address in {
    "list": page("changelist"),
    "filtered": page("changelist") + "?owner=root&memory=used&q=rain",
    "transcript": page("change", talk.pk),
    "message": page("message", talk.pk, 2),
    "log": page("history", talk.pk),
    **{name: page(name, talk.pk) for name in ("clear", "recount", "export", "delete")},
}.items():
    response = client.get(address)
    pages[name] = [response.status_code, response.content.decode()]
response = client.post(page("clear", talk.pk), {"confirmed": "clear"})
pages["cleared"] = [response.status_code, str(Conversation.objects.get().memory_messages)]
json.dump(pages, sys.stdout)
