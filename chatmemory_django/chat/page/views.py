"""The view of the page. The rest is done by the REST API and the chat over HTTP."""

from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import ensure_csrf_cookie

from chatmemory_django.chat.conf import chat_settings
from chatmemory_django.chat.costs.usage import usage
from chatmemory_django.chat.models import ModelCall
from chatmemory_django.chat.page.texts import TEXTS, WORDS
from chatmemory_django.chat.ui_messages.files import KINDS, TEXT_TYPES
from chatmemory_django.core.limits import MAX_TITLE_LENGTH

TEXT_ENDINGS = (
    *(
        ".c",
        ".cfg",
        ".conf",
        ".cpp",
        ".cs",
        ".css",
        ".csv",
        ".diff",
        ".go",
        ".h",
        ".html",
        ".ini",
        ".java",
        ".js",
        ".json",
    ),
    *(".jsonl", ".kt", ".log", ".lua", ".md", ".php", ".pl", ".po", ".py", ".r", ".rb", ".rs", ".rst", ".sh", ".sql"),
    *(".svelte", ".swift", ".tex", ".toml", ".ts", ".tsv", ".tsx", ".txt", ".vue", ".xml", ".yaml", ".yml"),
)
"""The endings of files of text that browsers give a type of their own, or none: they are sent as plain text."""

ACCEPTED = ",".join([*(kind if "/" in kind else f"{kind}/*" for kind in KINDS.values()), *TEXT_TYPES, *TEXT_ENDINGS])
"""The media types and the endings of files that the chat takes."""


@never_cache
@login_required
@ensure_csrf_cookie  # the scripts send the token with unsafe requests
def page(request: HttpRequest) -> HttpResponse:
    """Render the page. The scripts open the conversation in ``?chat=``."""
    context = {
        "texts": TEXTS,
        "words": WORDS,
        "accepted": ACCEPTED,
        "longest": chat_settings().MAX_TEXT_LENGTH,
        "longest_title": MAX_TITLE_LENGTH,
        "used": used_by(request.user),
    }
    return render(request, "chatmemory_page/page.html", context)


def used_by(user: Any) -> int:
    """Return how many tokens the model used for *user* in the last 30 days."""
    now = datetime.now(UTC)
    rows = usage(ModelCall.objects.owned_by(user), "purpose", since=now - timedelta(days=30), until=now, limit=10)
    return sum(row.input + row.output for row in rows)
