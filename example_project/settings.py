"""The settings of a minimal real site: SQLite by default, or another database with ``DATABASE_URL``."""

import os
from pathlib import Path

import dj_database_url
from django.core.exceptions import ImproperlyConfigured

BASE_DIR = Path(__file__).resolve().parent.parent

DEBUG = os.environ.get("DEBUG") == "1"  # as manage.py sets it, for the demo on your own machine
KNOWN_KEY = "only good enough for a demo on your own machine"
SECRET_KEY = os.environ.get("SECRET_KEY", KNOWN_KEY)
if SECRET_KEY == KNOWN_KEY and not DEBUG:
    raise ImproperlyConfigured(
        "With DEBUG off, the environment variable SECRET_KEY must be a secret, such as the output of "
        "python -c 'import secrets; print(secrets.token_urlsafe(50))'. The key of the demo is known to everyone. "
        "On your own machine, run manage.py, or set DEBUG=1."
    )
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]"]

INSTALLED_APPS = [
    "example_project",  # first, so that its runserver command is used
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "rest_framework",
    "rest_framework.authtoken",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "chatmemory_django",
    "chatmemory_django.chat",
    "chatmemory_django.chat.page",
    "chatmemory_django.contrib.adapters.records",
    "chatmemory_django.contrib.notes",
]

# Without DEBUG, the site is served by HTTPS only: browsers remember that for a year, and send its cookies to no other.
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = not DEBUG
SECURE_HSTS_SECONDS = 0 if DEBUG else 365 * 86_400
SESSION_COOKIE_NAME, CSRF_COOKIE_NAME = (f"{'' if DEBUG else '__Host-'}{name}" for name in ("sessionid", "csrftoken"))

# Only behind a proxy that sets both headers, whatever the client has sent: otherwise, clients could choose them.
BEHIND_PROXY = os.environ.get("BEHIND_PROXY") == "1"
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if BEHIND_PROXY else None

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]

AUTHENTICATION_BACKENDS = ["example_project.backends.DemoOnlyBackend"]

MIDDLEWARE = [
    "example_project.policy.ContentSecurityPolicyMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "chatmemory_django.access.WrongPasswordsMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "example_project.pages.about",
            ],
        },
    },
]

ROOT_URLCONF = "example_project.urls"
WSGI_APPLICATION = "example_project.wsgi.application"
ASGI_APPLICATION = "example_project.asgi.application"

DATABASES = {"default": dj_database_url.config(default=f"sqlite:///{BASE_DIR / 'db.sqlite3'}")}
if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    DATABASES["default"].setdefault("OPTIONS", {}).update(
        transaction_mode="IMMEDIATE",  # writers queue instead of failing
        timeout=20,  # seconds to wait for the lock
        init_command="PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
    )

# This is Django's default since 6.0; earlier versions warn about sites that do not set it.
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

LOGIN_URL = "sign-in"
LOGIN_REDIRECT_URL = "chatmemory_page:page"
LOGOUT_REDIRECT_URL = "sign-in"

STATIC_URL = "static/"
LANGUAGES = [("en", "English"), ("de", "Deutsch")]
USE_TZ = True
TIME_ZONE = "UTC"

REST_FRAMEWORK = {
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",  # for views that do not belong to the API
    # Tokens first, so that unauthenticated requests get 401 and not 403.
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "rest_framework.authentication.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
}

SPECTACULAR_SETTINGS = {
    "TITLE": "Chat memory",
    "VERSION": "1",
    "OAS_VERSION": "3.1.1",
    "SERVE_INCLUDE_SCHEMA": False,
    "PREPROCESSING_HOOKS": ["chatmemory_django.chat.http.schema.with_chat"],
    "TAGS": [
        {"name": "chat", "description": "Questions and answers, as `useChat` of the AI SDK sends and reads them."},
        {"name": "conversations", "description": "A user's conversations."},
        {"name": "messages", "description": "The history of a conversation."},
        {"name": "memory", "description": "What the model is sent of a conversation, and from where it goes on."},
        {"name": "addresses", "description": "Where all this is."},
        {"name": "notes", "description": "What assistants keep in mind about the user."},
        {"name": "usage", "description": "Numbers of messages and tokens."},
        {"name": "queue", "description": "What waits for people."},
        {"name": "tokens", "description": "Tokens for apps and services."},
    ],
    # The documentation page and its scripts are served by this site, not by a CDN.
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
}

CHATMEMORY = {
    "MEMORY": "example_project.memories.memory_of",
    "ACCESS_POLICY": "example_project.tokens.SitePolicy",
    "REST": {"FORMAT": "openai", "NUM_PROXIES": int(BEHIND_PROXY)},
    "CHAT": {
        "ASSISTANT": "example_project.assistants.assistant",
        "IMAGE_DETAIL": "LOW",  # so that images fit in small memories
    },
    "RETENTION": {"TEMPORARY": 1},  # days; manage.py prune_chatmemory erases what is older
}
