"""The admin of notes: they can be seen and deleted. Their texts are for those who may read messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from django.contrib import admin
from django.contrib.auth import get_user_model
from django.db.models import ProtectedError, QuerySet
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.utils.decorators import method_decorator
from django.utils.translation import gettext_lazy as _

from chatmemory_django.conf import general
from chatmemory_django.contrib.notes.models import Note
from chatmemory_django.contrib.notes.signals import notes_read
from chatmemory_django.core.shown import visible
from chatmemory_django.db.row_codec import UNREADABLE, unreadable_as
from chatmemory_django.models.copies import refuse_held_owner
from chatmemory_django.models.fields import without_texts
from chatmemory_django.operations.reading import Way
from chatmemory_django.private import private_view

FOUND = 1_000
"""Of how many users whose name is searched for the notes are listed at most."""


@admin.register(Note)
class NoteAdmin(admin.ModelAdmin):
    """What assistants keep in mind about whom."""

    list_display = ("number", "owner_name", "created_at", "updated_at")
    list_per_page = 50
    ordering = ("-updated_at", "pk")
    search_fields = ("owner",)  # and how: see get_search_results
    search_help_text = _("Name of the owner")
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Note | None = None) -> bool:
        return False

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """See ``ModelAdmin``. No lookup in the address of the list reveals what a text has."""
        return False

    def get_queryset(self, request: HttpRequest) -> Any:
        rows = super().get_queryset(request)
        return rows if _may_read(request) else without_texts(rows)

    def get_list_display(self, request: HttpRequest) -> tuple[str, ...]:
        return (*self.list_display, "shown_text") if _may_read(request) else self.list_display

    def get_readonly_fields(self, request: HttpRequest, obj: Note | None = None) -> tuple[str, ...]:
        return self.get_list_display(request)

    def get_fields(self, request: HttpRequest, obj: Note | None = None) -> tuple[str, ...]:
        return self.get_list_display(request)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Note], search_term: str
    ) -> tuple[QuerySet[Note], bool]:
        """See ``ModelAdmin``. Users may be in another database, so that no join reaches them."""
        if not search_term:
            return queryset, False
        users: Any = get_user_model()
        named = users._default_manager.filter(**{f"{users.USERNAME_FIELD}__icontains": search_term})
        return queryset.filter(owner__in=list(named.values_list("pk", flat=True)[:FOUND])), False

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """See ``ModelAdmin``: what a hold protects is named before anything is deleted."""
        shown, counts, needed, protected = super().get_deleted_objects(objs, request)
        for using, owner in {(note._state.db, note.owner_id) for note in objs}:
            try:
                refuse_held_owner(str(using), owner)
            except ProtectedError as exc:
                protected += sorted(map(str, exc.protected_objects))
        return shown, counts, needed, protected

    @method_decorator(private_view)
    def changelist_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """See ``ModelAdmin``. A text that cannot be decrypted is shown as such."""
        response = _rendered(super().changelist_view, request, *args, **kwargs)
        # A POST that is no action is answered with the list, too.
        if (listed := _context_of(response).get("cl")) is not None:
            _note_read(request, listed.result_list, "searched" if listed.query else "listed")
        return response

    @method_decorator(private_view)
    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """See ``changelist_view``."""
        response = _rendered(super().changeform_view, request, *args, **kwargs)
        if (note := _context_of(response).get("original")) is not None:
            _note_read(request, [note], "read")
        return response

    def delete_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """See ``changelist_view``."""
        return _rendered(super().delete_view, request, *args, **kwargs)

    @admin.display(description=_("owner"), ordering="owner")
    def owner_name(self, note: Note) -> str:
        """Return the owner as the site displays users."""
        return visible(str(note.owner))

    @admin.display(description=_("text"))
    def shown_text(self, note: Note) -> str:
        """Return the text, with what is not seen in it made visible."""
        return visible(note.text)


def _rendered(view: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with unreadable_as(str(UNREADABLE)):
        response = view(*args, **kwargs)
        return response.render() if isinstance(response, TemplateResponse) else response


def _context_of(response: Any) -> Mapping[str, Any]:
    return getattr(response, "context_data", None) or {}


def _note_read(request: HttpRequest, notes: Iterable[Note], way: Way) -> None:
    others = [note for note in notes if note.owner_id != request.user.pk]
    if others and general().LOG_READS:
        notes_read.send_robust(Note, reader=request.user, notes=others, way=way)


def _may_read(request: HttpRequest) -> bool:
    return request.user.has_perm("chatmemory.view_message_text")
