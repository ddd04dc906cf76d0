"""Django's settings: the example project with the search app, on the PostgreSQL of the other benchmarks."""

import os

os.environ["DEBUG"] = "0"
os.environ.setdefault("SECRET_KEY", "of a site that no one else can reach")

from benchmarks.settings import DATABASE, SERVERS  # noqa: F401
from example_project.settings import *  # noqa: F403
from example_project.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "chatmemory_django.contrib.search"]
ALLOWED_HOSTS = ["testserver"]
SECURE_SSL_REDIRECT = False
DATABASES = {"default": SERVERS["postgresql"], "postgresql": SERVERS["postgresql"]}
CHATMEMORY = {"REST": {"THROTTLE_RATES": {}}}
