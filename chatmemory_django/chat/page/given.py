"""What the templates and the scripts of the chat are given: addresses, texts, choices."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.middleware.csrf import get_token
from django.shortcuts import resolve_url
from django.urls import NoReverseMatch, reverse
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from chatmemory_django.access import NotAllowedError, access_policy
from chatmemory_django.chat.conf import chat_settings
from chatmemory_django.chat.costs.usage import usage
from chatmemory_django.chat.models import ModelCall
from chatmemory_django.chat.page import modules
from chatmemory_django.chat.page.conf import page_settings
from chatmemory_django.chat.page.texts import TEXTS, WORDS
from chatmemory_django.chat.ui_messages.files import KINDS, TEXT_TYPES
from chatmemory_django.core.limits import MAX_TITLE_LENGTH

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

TEXT_ENDINGS = (
    "c,cfg,conf,cpp,cs,css,csv,diff,go,h,html,ini,java,js,json,jsonl,kt,log,lua,md,php,pl,po,py,r,rb,rs,rst,sh,sql,svelte,"
    "swift,tex,toml,ts,tsv,tsx,txt,vue,xml,yaml,yml"
)
"""The endings of files of text that browsers give a type of their own, or none: they are sent as plain text."""

ACCEPTED = ",".join(
    [
        *(kind if "/" in kind else f"{kind}/*" for kind in KINDS.values()),
        *TEXT_TYPES,
        *(f".{ending}" for ending in TEXT_ENDINGS.split(",")),
    ]
)
"""The media types of files that the chat takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Which parts of the chat are shown, and whose."""

    is_page: bool = False
    """Whether it is a page of its own: it has the open conversation in its address, and a heading."""
    conversations: bool = True
    memory: bool | None = None
    """None: as the site's settings have it."""
    assistant: str | None = None
    """The name of the assistant that is asked, whose conversations alone are listed; None for a choice."""


def user_of(request: HttpRequest) -> AbstractBaseUser:
    """Return who sent *request*, by the site's access policy; ``NotAllowedError`` for those who may not chat."""
    policy, sender = access_policy(), cast("Any", request)
    before = sender.user
    try:
        sender.user = user = policy.user(request)
        if not policy.is_allowed(request):
            raise NotAllowedError(403, _("You may not chat here."))
        return user
    finally:
        sender.user = before  # the rest of the page is for whom the middleware found


def context(request: HttpRequest, user: Any, parts: Parts) -> dict[str, Any]:
    """
    Return the context of the chat's templates for *user*, who sent *request*.

    Raises ``ImproperlyConfigured`` if an address is not there, or the site has no assistant of this name.
    """
    page = page_settings()
    assistants = assistants_for_people()
    if parts.assistant not in {None, *assistants}:
        raise ImproperlyConfigured(
            f"CHATMEMORY['CHAT'] has no assistant {parts.assistant!r}; it has {', '.join(map(repr, assistants))}."
        )
    [only] = assistants if len(assistants) == 1 else [parts.assistant]
    return {
        "given": {
            "texts": {name: str(text) for name, text in TEXTS.items()},
            "addresses": addresses(),
            "csrf": csrf(request),
            "user": str(user.pk or ""),
            "language": get_language() or settings.LANGUAGE_CODE,
            "isPage": parts.is_page,
            "assistant": only or None,
            "filter": {} if parts.assistant is None else {"assistant": parts.assistant},
        },
        "script": modules.address("page"),
        "user": user,
        "is_page": parts.is_page,
        "shows_conversations": parts.conversations,
        "shows_memory": page.MEMORY if parts.memory is None else parts.memory,
        "is_alone": parts.is_page and page.BASE == type(page).BASE,
        "assistants": assistants.items() if parts.assistant is None and len(assistants) > 1 else (),
        "models": page.MODELS.items(),
        "words": WORDS,
        "accepted": ACCEPTED,
        "longest": chat_settings().MAX_TEXT_LENGTH,
        "longest_title": MAX_TITLE_LENGTH,
        "used": partial(used_by, user),
    }


def assistants_for_people() -> dict[str, object]:
    """Return what people read for each assistant of the settings, by its name; empty for ``ASSISTANT``."""
    chat, named = chat_settings(), page_settings().ASSISTANTS
    names = [*([""] if chat.ASSISTANT is not None else []), *chat.ASSISTANTS]
    return {name: named.get(name) or name.replace("_", " ").capitalize() or _("Assistant") for name in names}


def addresses() -> dict[str, Any]:
    """Return the addresses that the scripts use; ``ImproperlyConfigured`` names what the site has to include."""
    if missing := missing_urls():
        raise ImproperlyConfigured(f"The chat page needs {' and '.join(missing)} in the URLs of the site.")
    chat = reverse("chatmemory_chat:chat")
    return {
        "conversations": f"{reverse('chatmemory:conversation-list').rstrip('/')}/",
        "chat": {"post": chat, "root": f"{chat.rstrip('/')}/"},
        "page": reverse("chatmemory_page:page"),
        "signIn": resolve_url(settings.LOGIN_URL),
    }


URLS = {
    "chatmemory_page:page": "chatmemory_django.chat.page.urls",
    "chatmemory:conversation-list": "chatmemory_django.rest.urls",
    "chatmemory_chat:chat": "chatmemory_django.chat.urls",
}
"""The names of URLs that the page uses, and what a site includes for each."""


def missing_urls() -> list[str]:
    """Return what the site would have to include: the first has the others, too."""
    missing = [name for name in URLS if not _is_there(name)]
    whole = next(iter(URLS))
    return [f'include("{URLS[name]}")' for name in ([whole] if whole in missing else missing)]


def _is_there(name: str) -> bool:
    try:
        reverse(name)
    except NoReverseMatch:
        return False
    return True


def csrf(request: HttpRequest) -> dict[str, str]:
    """Return the CSRF token, and where scripts find a newer one and send it."""
    is_readable = not (settings.CSRF_USE_SESSIONS or settings.CSRF_COOKIE_HTTPONLY)
    header = settings.CSRF_HEADER_NAME.removeprefix("HTTP_").replace("_", "-")
    return {"token": get_token(request), "cookie": settings.CSRF_COOKIE_NAME if is_readable else "", "header": header}


def used_by(user: Any) -> int:
    """Return how many tokens the model used for *user* in the last 30 days."""
    now = datetime.now(UTC)
    rows = usage(ModelCall.objects.owned_by(user), "purpose", since=now - timedelta(days=30), until=now, limit=10)
    return sum(row.input + row.output for row in rows)
