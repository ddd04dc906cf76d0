"""The sites, as what they add to ``startproject`` with this package's apps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


def by_token(user: Any) -> str:
    from rest_framework.authtoken.models import Token

    return f"Token {Token.objects.get_or_create(user=user)[0].key}"


def by_jwt(user: Any) -> str:
    from rest_framework_simplejwt.tokens import AccessToken

    return f"Bearer {AccessToken.for_user(user)}"


def by_knox(user: Any) -> str:
    from knox.models import AuthToken

    return f"Token {AuthToken.objects.create(user)[1]}"


class Site(NamedTuple):
    """A site. What it has from PyPI is in the dependency group ``zoo``."""

    first: tuple[str, ...] = ()
    """The apps in front of Django's."""
    apps: tuple[str, ...] = ()
    middleware: tuple[str, ...] = ()
    drf: Mapping[str, Any] = {}
    """What differs in ``REST_FRAMEWORK``."""
    settings: Mapping[str, Any] = {}
    urls: tuple[tuple[str, str], ...] = ()
    rest: str = "api/"
    """Where the REST API is."""
    authorization: Callable[[Any], str] = by_token
    """Returns the header ``Authorization`` of a user, for REST and the chat."""

    def configured(self, **settings: Any) -> dict[str, Any]:
        """Return all settings, and *settings* of the process."""
        return {
            "ZOO": self,
            "SECRET_KEY": "a key for tests that has fifty characters, at least it should",
            "ALLOWED_HOSTS": ["testserver"],
            "ROOT_URLCONF": "tests.acceptance.zoo.urls",
            "STATIC_URL": "static/",
            "USE_TZ": True,
            "DEFAULT_AUTO_FIELD": "django.db.models.BigAutoField",
            "PASSWORD_HASHERS": ["django.contrib.auth.hashers.MD5PasswordHasher"],
            "INSTALLED_APPS": [
                *self.first,
                "django.contrib.admin",
                "django.contrib.auth",
                "django.contrib.contenttypes",
                "django.contrib.sessions",
                "django.contrib.messages",
                "django.contrib.staticfiles",
                "rest_framework",
                "rest_framework.authtoken",
                "drf_spectacular",
                "chatmemory_django",
                "chatmemory_django.chat",
                *self.apps,
            ],
            "MIDDLEWARE": [
                "django.middleware.security.SecurityMiddleware",
                "django.contrib.sessions.middleware.SessionMiddleware",
                "django.middleware.common.CommonMiddleware",
                "django.middleware.csrf.CsrfViewMiddleware",
                "django.contrib.auth.middleware.AuthenticationMiddleware",
                "django.contrib.messages.middleware.MessageMiddleware",
                "django.middleware.clickjacking.XFrameOptionsMiddleware",
                *self.middleware,
            ],
            "TEMPLATES": [
                {
                    "BACKEND": "django.template.backends.django.DjangoTemplates",
                    "APP_DIRS": True,
                    "OPTIONS": {
                        "context_processors": [
                            "django.template.context_processors.request",
                            "django.contrib.auth.context_processors.auth",
                            "django.contrib.messages.context_processors.messages",
                        ],
                    },
                },
            ],
            "REST_FRAMEWORK": {
                "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
                "DEFAULT_AUTHENTICATION_CLASSES": [
                    "rest_framework.authentication.TokenAuthentication",
                    "rest_framework.authentication.SessionAuthentication",
                ],
                **self.drf,
            },
            "SPECTACULAR_SETTINGS": {"PREPROCESSING_HOOKS": ["chatmemory_django.chat.http.schema.with_chat"]},
            "CHATMEMORY": {"CHAT": {"ASSISTANT": "tests.acceptance.zoo.visits.assistant"}},
            **self.settings,
            **settings,
        }


COOKIECUTTER = Site(
    apps=("tests.acceptance.zoo.people", "django.contrib.sites", "allauth", "allauth.account", "allauth.socialaccount"),
    middleware=("whitenoise.middleware.WhiteNoiseMiddleware", "allauth.account.middleware.AccountMiddleware"),
    drf={
        "DEFAULT_AUTHENTICATION_CLASSES": (
            "rest_framework.authentication.SessionAuthentication",
            "rest_framework.authentication.TokenAuthentication",
        ),
        "DEFAULT_PERMISSION_CLASSES": ("rest_framework.permissions.IsAuthenticated",),
    },
    settings={
        "AUTH_USER_MODEL": "people.User",
        "AUTHENTICATION_BACKENDS": [
            "django.contrib.auth.backends.ModelBackend",
            "allauth.account.auth_backends.AuthenticationBackend",
        ],
        "SITE_ID": 1,
        "LOGIN_URL": "account_login",
        "ACCOUNT_LOGIN_METHODS": {"email"},
        "ACCOUNT_SIGNUP_FIELDS": ["email*", "password1*", "password2*"],
        "ACCOUNT_USER_MODEL_USERNAME_FIELD": None,
        "CSRF_COOKIE_HTTPONLY": True,
        "SESSION_COOKIE_HTTPONLY": True,
        "X_FRAME_OPTIONS": "DENY",
        "ATOMIC_REQUESTS": True,  # of the database
        "STORAGES": {
            "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
            "staticfiles": {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"},
        },
    },
    urls=(("accounts/", "allauth.urls"),),
)
"""cookiecutter-django's settings, by hand: its template is not on PyPI."""

SITES = {
    "startproject": Site(),
    "wagtail": Site(
        apps=(
            "django.contrib.postgres",
            *(f"wagtail.contrib.{name}" for name in ("forms", "redirects")),
            *(
                f"wagtail.{name}"
                for name in ("embeds", "sites", "users", "snippets", "documents", "images", "search", "admin")
            ),
            "wagtail",
            "modelcluster",
            "taggit",
        ),
        middleware=("wagtail.contrib.redirects.middleware.RedirectMiddleware",),
        settings={"WAGTAIL_SITE_NAME": "Zoo", "WAGTAILADMIN_BASE_URL": "http://testserver"},
        urls=(("cms/", "wagtail.admin.urls"), ("documents/", "wagtail.documents.urls"), ("", "wagtail.urls")),
    ),
    "unfold": Site(first=("unfold",)),
    "jazzmin": Site(first=("jazzmin",)),
    "jwt": Site(
        drf={"DEFAULT_AUTHENTICATION_CLASSES": ["rest_framework_simplejwt.authentication.JWTAuthentication"]},
        authorization=by_jwt,
    ),
    "knox": Site(
        apps=("knox",),
        drf={"DEFAULT_AUTHENTICATION_CLASSES": ["knox.auth.TokenAuthentication"]},
        authorization=by_knox,
    ),
    "camel_case": Site(
        middleware=("djangorestframework_camel_case.middleware.CamelCaseMiddleWare",),
        drf={
            "DEFAULT_RENDERER_CLASSES": ["djangorestframework_camel_case.render.CamelCaseJSONRenderer"],
            "DEFAULT_PARSER_CLASSES": ["djangorestframework_camel_case.parser.CamelCaseJSONParser"],
        },
    ),
    "versions_in_headers": Site(
        drf={
            "DEFAULT_VERSIONING_CLASS": "rest_framework.versioning.AcceptHeaderVersioning",
            "DEFAULT_VERSION": "1.0",
            "ALLOWED_VERSIONS": ["1.0"],
        },
    ),
    "versions_in_paths": Site(
        drf={"DEFAULT_VERSIONING_CLASS": "rest_framework.versioning.URLPathVersioning", "DEFAULT_VERSION": "v1"},
        rest="api/<str:version>/",
    ),
    "unusual_settings": Site(
        middleware=(
            "django.middleware.gzip.GZipMiddleware",
            "django.middleware.http.ConditionalGetMiddleware",
            "django.middleware.csp.ContentSecurityPolicyMiddleware",
            "django.middleware.locale.LocaleMiddleware",
        ),
        drf={
            "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAdminUser"],
            "DEFAULT_THROTTLE_CLASSES": ["rest_framework.throttling.UserRateThrottle"],
            "DEFAULT_THROTTLE_RATES": {"user": "1/day"},
            "DATE_FORMAT": "%d.%m.%y",
            "COERCE_DECIMAL_TO_STRING": False,
        },
        settings={
            "APPEND_SLASH": False,
            "USE_TZ": False,
            "USE_THOUSAND_SEPARATOR": True,
            "SECURE_CSP": {"default-src": ["'self'"]},
            "CACHES": {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}},
        },
    ),
    "sessions_with_csrf": Site(settings={"CSRF_USE_SESSIONS": True}),
    "cookiecutter": COOKIECUTTER,
    "login_required": COOKIECUTTER._replace(
        middleware=(*COOKIECUTTER.middleware, "django.contrib.auth.middleware.LoginRequiredMiddleware")
    ),
}
