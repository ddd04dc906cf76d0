"""The page of a user's notes: it needs no script."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.db.models import ProtectedError
from django.http import HttpResponseRedirect
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_protect
from django.views.decorators.http import require_http_methods

from chatmemory_django.access import access_policy
from chatmemory_django.contrib.notes.conf import notes
from chatmemory_django.contrib.notes.keeping import (
    NotesFullError,
    NotesOffError,
    change,
    drop,
    is_on,
    keep,
    switch,
)
from chatmemory_django.contrib.notes.models import Note
from chatmemory_django.core.limits import MAX_INTEGER
from chatmemory_django.db.row_codec import UNREADABLE, unreadable_as
from chatmemory_django.private import private_view

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse


ACTIONS: Mapping[str, Callable[[Any, int, str], object]] = {
    "keep": lambda user, number, text: keep(user, text),
    "change": change,
    "drop": lambda user, number, text: drop(user, number),
    "drop_all": lambda user, number, text: drop(user),
    "switch_on": lambda user, number, text: switch(user, on=True),
    "switch_off": lambda user, number, text: switch(user, on=False),
}
"""What the buttons do, with the user, the number of a note, and a text."""


@private_view
@never_cache
@csrf_protect
@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """Show the notes about the user; a POST does what its button is for, and leads back to the page."""
    if not access_policy().is_allowed(request):
        raise PermissionDenied
    if request.method != "POST":
        return _shown(request)
    text = request.POST.get("text", "")
    try:
        _do(request.user, request.POST, text)
    except ProtectedError:
        return _shown(request, _("This cannot be deleted or changed now: a legal hold forbids it."), text)
    except NotesFullError:
        return _shown(request, _("There are as many notes as can be kept. Delete one of them first."), text)
    except NotesOffError:
        return _shown(request, _("Notes are switched off."), text)
    except ValueError:
        most = notes().MAX_LENGTH
        words = _("A note has 1 to %(most)s characters, with a letter or a digit, and no control characters.")
        return _shown(request, words % {"most": most}, text)
    return HttpResponseRedirect(request.path)


def _do(user: Any, posted: Mapping[str, str], text: str) -> None:
    action, number = ACTIONS.get(posted.get("action", "")), posted.get("number", "0")
    if action is None or not (number.isascii() and number.isdigit() and int(number[:12]) <= MAX_INTEGER):
        raise PermissionDenied
    with suppress(Note.DoesNotExist):  # it is gone already, or was never the user's
        action(user, int(number[:12]), text)


def _shown(request: HttpRequest, error: str = "", text: str = "") -> HttpResponse:
    with unreadable_as(str(UNREADABLE)):
        own = list(Note.objects.owned_by(request.user))
    limits = notes()
    context = {
        "notes": own,
        "is_on": is_on(request.user),  # type: ignore[arg-type]  # who is signed in
        "is_full": len(own) >= limits.MAX_NOTES,
        "max_notes": limits.MAX_NOTES,
        "max_length": limits.MAX_LENGTH,
        "error": error,
        "text": text,
    }
    status = HTTPStatus.BAD_REQUEST if error else HTTPStatus.OK
    return render(request, "chatmemory_notes/notes.html", context, status=status)
