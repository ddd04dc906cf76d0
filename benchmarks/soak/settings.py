"""Django's settings for the soak: the environment defines the databases."""

import json
import os

SECRET_KEY = "nothing here is secret"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "chatmemory_django"]
DATABASES = json.loads(os.environ["SOAK_DATABASES"])
USE_TZ = True
