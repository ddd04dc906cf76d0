"""The ASGI application."""

import os

from django.core.asgi import get_asgi_application

from chatmemory_django.chat.asgi import handing_over

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")

application = handing_over(get_asgi_application())
