"""The admin of conversations: permissions, the list, the pages of a conversation, and operations."""

from __future__ import annotations

from functools import partial, wraps
from http import HTTPStatus
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.contrib.admin.widgets import url_params_from_lookup_dict
from django.contrib.auth import get_permission_codename
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.forms.widgets import Script
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from chatmemory_django.admin import columns, downloads, filters, pages
from chatmemory_django.admin.changelist import MATCH, ConversationList, NewestPaginator, check_request
from chatmemory_django.admin.execution import export, perform, perform_at
from chatmemory_django.admin.message_operations import MESSAGE_OPERATIONS, MessageOperation
from chatmemory_django.admin.navigation import shown
from chatmemory_django.admin.operations import CLEAR, ERASE, EXPORT, OPERATIONS, RECOUNT, SHOWN, AdminOperation
from chatmemory_django.core.excerpts import terms_of
from chatmemory_django.core.shown import visible
from chatmemory_django.db import row_codec
from chatmemory_django.models import Conversation, ConversationQuerySet, Message
from chatmemory_django.models.conversations import newest_message_containing
from chatmemory_django.models.message_codec import StorageError
from chatmemory_django.operations.reading import note_read
from chatmemory_django.private import private_view


@admin.register(Conversation)
class ConversationAdmin(admin.ModelAdmin):
    """
    The admin to view, clear, erase, export, recount, rewind, switch and fork conversations.

    Messages cannot be edited, only removed.
    """

    list_display = (  # type: ignore[assignment]  # None is allowed: it is shown as a dash
        columns.title,
        columns.owner,
        columns.messages,
        columns.last_activity,
        columns.memory_id,
    )
    list_display_links = (columns.title,)
    list_filter = (
        filters.OwnerFilter,
        filters.ActiveFilter,
        filters.UntilFilter,
        filters.ProblemFilter,
        filters.EvictionsFilter,
        filters.EmptyFilter,
        filters.AssistantFilter,
        filters.FlagFilter,
    )
    list_per_page = 50
    search_fields = ("memory_id", "title")  # and more: see get_search_results
    paginator = NewestPaginator
    ordering = ("-updated_at",)
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    actions = ("clear_memory", "recount_tokens", "export_conversations", "delete_selected")

    class Media:
        css = {"all": ("chatmemory/admin.css",)}  # noqa: RUF012  # as Django documents it
        js = (Script("chatmemory/copy.js", defer=True),)

    # Permissions. Erasing requires Django's delete permission.

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Conversation | None = None) -> bool:
        return False

    def has_clear_permission(self, request: HttpRequest, obj: Conversation | None = None) -> bool:
        """Return whether the user may clear memories."""
        return self._has_permission(request, "clear")

    def has_recount_permission(self, request: HttpRequest, obj: Conversation | None = None) -> bool:
        """Return whether the user may recount tokens."""
        return self._has_permission(request, "recount")

    def has_export_permission(self, request: HttpRequest, obj: Conversation | None = None) -> bool:
        """Return whether the user may export messages, which includes reading them."""
        return self._has_permission(request, "export") and self.has_text_permission(request, obj)

    def has_text_permission(self, request: HttpRequest, obj: Conversation | None = None) -> bool:
        """Return whether the user may read the contents of messages, and titles."""
        return request.user.has_perm("chatmemory.view_message_text")

    def has_rewind_permission(self, request: HttpRequest, obj: Conversation | None = None) -> bool:
        """Return whether the user may rewind conversations, which requires Django's change permission."""
        return self._has_permission(request, "change")

    def has_switch_permission(self, request: HttpRequest, obj: Conversation | None = None) -> bool:
        """Return whether the user may switch conversations to other branches; by default, as for rewinding."""
        return self.has_rewind_permission(request, obj)

    def has_pin_permission(self, request: HttpRequest, obj: Conversation | None = None) -> bool:
        """Return whether the user may pin messages, which requires Django's change permission."""
        return self._has_permission(request, "change")

    def has_unpin_permission(self, request: HttpRequest, obj: Conversation | None = None) -> bool:
        """Return whether the user may unpin messages; by default, as for pinning."""
        return self.has_pin_permission(request, obj)

    def has_fork_permission(self, request: HttpRequest, obj: Conversation | None = None) -> bool:
        """Return whether the user may fork conversations, which requires Django's add permission."""
        return self._has_permission(request, "add")

    def has_remove_permission(self, request: HttpRequest, obj: Conversation | None = None) -> bool:
        """Return whether the user may remove messages, which requires Django's permission to delete them."""
        return request.user.has_perm("chatmemory.delete_message")

    def _has_permission(self, request: HttpRequest, action: str) -> bool:
        return request.user.has_perm(f"{self.opts.app_label}.{get_permission_codename(action, self.opts)}")

    def _may(
        self, operation: AdminOperation | MessageOperation, request: HttpRequest, conversation: Conversation
    ) -> bool:
        may_do: bool = getattr(self, f"has_{operation.name}_permission")(request, conversation)
        return may_do and self.has_view_permission(request, conversation)

    # The list

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        check_request(request)
        response = super().changelist_view(request, extra_context)
        # A POST that is no action is answered with the list, too.
        if (listed := (getattr(response, "context_data", None) or {}).get("cl")) is not None:
            note_read(request.user, listed.result_list, "searched" if listed.query else "listed")
            self._offer_other_match(request, listed)
        return response

    def _offer_other_match(self, request: HttpRequest, listed: ConversationList) -> None:
        """Offer to search for any of the words where nothing has all of them, and back."""
        if request.GET.get(MATCH) == "any":
            given, offered, match = _("These conversations have any of the words."), _("Search for all of them"), None
        elif not listed.result_count and self._searches_messages(request) and len(terms_of(listed.query)) > 1:
            given, offered, match = _("No conversation has all of these words."), _("Search for any of them"), "any"
        else:
            return
        link = listed.get_query_string({MATCH: match}, ["p"])
        self.message_user(request, format_html('{} <a href="{}">{}</a>', given, link, offered), messages.INFO)

    def _searches_messages(self, request: HttpRequest) -> bool:
        return self.has_text_permission(request) and row_codec.installed is None

    @property
    def search_help_text(self) -> str:  # type: ignore[override]  # an attribute of ModelAdmin
        """See ``ModelAdmin``: what is encrypted is not found."""
        if row_codec.installed is not None:
            return _("Memory id or owner")
        return _("Memory id or owner, and titles and messages if you may read them")

    def get_sortable_by(self, request: HttpRequest) -> Any:
        """See ``ModelAdmin``: the order of encrypted titles means nothing."""
        sortable = super().get_sortable_by(request)
        return sortable if row_codec.installed is None else [each for each in sortable if each is not columns.title]

    def get_list_display(self, request: HttpRequest) -> Any:
        """See ``ModelAdmin``. What is not displayed cannot be ordered by, either."""
        listed = super().get_list_display(request)
        if self.has_text_permission(request):
            return listed
        # The memory id is the name of the conversation, and comes first.
        untitled = [each for each in listed if each is not columns.title]
        return sorted(untitled, key=lambda each: each is not columns.memory_id)

    def get_list_display_links(self, request: HttpRequest, list_display: Any) -> Any:
        """See ``ModelAdmin``: where the title is not displayed, the memory id is the link."""
        links = super().get_list_display_links(request, list_display)
        return links if links is None or any(each in list_display for each in links) else [columns.memory_id]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return ConversationList

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest) -> bool:
        """
        Return whether the list's query string may use *lookup*: those of its filters and ``limit_choices_to``.

        By default, Django allows lookups on every field, which would let users guess values that the list hides.
        """
        limits = (limit() if callable(limit) else limit for limit in self.opts.related_fkey_lookups)
        if any((lookup, value) in url_params_from_lookup_dict(limit).items() for limit in limits):
            return True
        is_filter = any(filters.asks_for(each, lookup) for each in self.get_list_filter(request))
        return is_filter and super().lookup_allowed(lookup, value, request)

    def get_search_results(
        self, request: HttpRequest, queryset: Any, search_term: str
    ) -> tuple[QuerySet[Conversation], bool]:
        if not search_term:
            return queryset, False
        known = queryset.known_as(search_term)
        if known is not None:
            return known, False
        is_readable = self._searches_messages(request)
        if is_readable and request.GET.get(MATCH) == "any":
            return queryset.search(search_term, match="any"), False
        found = queryset.search(search_term, types=None if is_readable else ())
        owned = queryset.filter(owner__in=filters.people_named(search_term, "icontains"))
        keys = filters.at_most(filters.newest_keys(found) | filters.newest_keys(owned), request)
        listed = queryset.filter(pk__in=keys)
        return listed.annotate(found_in=newest_message_containing(search_term)) if is_readable else listed, False

    @wraps(admin.ModelAdmin.action_checkbox)
    def action_checkbox(self, obj: Conversation) -> SafeString:  # type: ignore[override]  # wraps keeps the signature
        return super().action_checkbox(_stand_in(obj))

    # A conversation

    def get_urls(self) -> list[URLPattern]:
        def page(route: str, view: Any, name: str) -> URLPattern:
            full_name = f"{self.opts.app_label}_{self.opts.model_name}_{name}"
            pattern: URLPattern = path(f"<int:pk>/{route}", self.admin_site.admin_view(view), name=full_name)
            return pattern

        pages = [
            *(
                page(f"{each.name}/", partial(self.operate_view, operation=each), each.name)
                for each in (CLEAR, RECOUNT, EXPORT)
            ),
            page("openai/", self.openai_view, "openai"),
            page("messages/<int:sequence>/", self.message_view, "message"),
            page("messages/<int:sequence>/json/", self.json_view, "json"),
            page("messages/<int:sequence>/openai/", self.message_openai_view, "message_openai"),
            page("messages/<int:sequence>/files/<int:index>/", self.file_view, "file"),
            *(
                page(f"messages/<int:sequence>/{each.name}/", partial(self.operate_at_view, operation=each), each.name)
                for each in MESSAGE_OPERATIONS
            ),
            *super().get_urls(),
        ]
        for each in pages:
            each.callback = private_view(each.callback)
        return pages

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        conversation = self.get_object(request, unquote(object_id))
        if request.method not in {"GET", "HEAD"} or not self.has_view_permission(request, conversation):
            raise PermissionDenied
        if conversation is None:
            return self._gone(request)
        if "on" in request.GET:
            link, level, notice = pages.landing(request, conversation)
            if notice:
                self.message_user(request, notice, level)
            return HttpResponseRedirect(self._url("change", conversation.pk) + link)
        is_readable = self.has_text_permission(request, conversation)
        offered = self._offered(request, conversation)
        context = pages.transcript(request, conversation, is_readable=is_readable, offered=offered)
        context["operations"] = [each for each in OPERATIONS if self._may(each, request, conversation)]
        note_read(request.user, [conversation], "searched" if "found" in context else "read")
        return self._page(request, "transcript", conversation, {**context, **(extra_context or {})})

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        conversation = self.get_object(request, unquote(object_id))
        shown = {}
        if conversation is not None:
            name = self._name(request, conversation)
            shown = {"title": _("Log: %s") % name, "object": _stand_in(conversation)}
        return super().history_view(request, object_id, {**shown, **(extra_context or {})})

    def openai_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Download what the model is sent as JSON in OpenAI's format."""
        conversation = self._readable(request, pk)
        try:
            content = downloads.memory_as_openai(conversation)
        except downloads.NotPossibleError as exc:
            return self._unavailable(request, exc, self._url("change", pk))
        return downloads.json_file(content, f"memory-{pk}-openai.json")

    def message_view(self, request: HttpRequest, pk: int, sequence: int) -> HttpResponse:
        """Show a single message, and its JSON."""
        conversation, row = self._readable_message(request, pk, sequence)
        context = pages.message(conversation, row, self._offered(request, conversation))
        return self._page(request, "message_page", conversation, context)

    def json_view(self, request: HttpRequest, pk: int, sequence: int) -> HttpResponse:
        """Download a message as JSON."""
        _conversation, row = self._readable_message(request, pk, sequence)
        content = downloads.message_json(row)
        return downloads.json_file(content, f"message-{pk}-{sequence}.json")

    def message_openai_view(self, request: HttpRequest, pk: int, sequence: int) -> HttpResponse:
        """Download a message as JSON in OpenAI's format."""
        _conversation, row = self._readable_message(request, pk, sequence)
        try:
            content = downloads.message_as_openai(row)
        except downloads.NotPossibleError as exc:
            return self._unavailable(request, exc, self._url("message", pk, sequence))
        return downloads.json_file(content, f"message-{pk}-{sequence}-openai.json")

    def file_view(self, request: HttpRequest, pk: int, sequence: int, index: int) -> HttpResponse:
        """Serve a file in the contents of a message."""
        _conversation, row = self._readable_message(request, pk, sequence)
        try:
            file = downloads.file_of(row, index)
        except StorageError as exc:
            return HttpResponse(str(exc), status=HTTPStatus.SERVICE_UNAVAILABLE, content_type="text/plain")
        if file is None:
            raise Http404
        return HttpResponse(file.content, headers=file.headers(f"message-{pk}-{sequence}-{index + 1}"))

    def _readable(self, request: HttpRequest, pk: int) -> Conversation:
        conversation: Conversation | None = self.get_object(request, str(pk))
        if not self.has_view_permission(request, conversation) or not self.has_text_permission(request, conversation):
            raise PermissionDenied
        if conversation is None:
            raise Http404
        note_read(request.user, [conversation], "read")
        return conversation

    def _readable_message(self, request: HttpRequest, pk: int, sequence: int) -> tuple[Conversation, Message]:
        conversation = self._readable(request, pk)
        return conversation, self._message(conversation, sequence)

    def _message(self, conversation: Conversation, sequence: int) -> Message:
        row = shown(conversation, all_branches=True).with_status().filter(sequence=sequence).first()
        if row is None:
            raise Http404
        return row

    def _offered(self, request: HttpRequest, conversation: Conversation) -> list[MessageOperation]:
        """Return the operations that the user may perform on messages of *conversation*."""
        return [each for each in MESSAGE_OPERATIONS if self._may(each, request, conversation)]

    def _unavailable(self, request: HttpRequest, exc: downloads.NotPossibleError, back: str) -> HttpResponse:
        self.message_user(request, visible(str(exc)), messages.ERROR)
        return HttpResponseRedirect(back)

    # Operations on the conversations selected in the list, and on a single one

    @admin.action(description=CLEAR.label, permissions=["clear"])
    def clear_memory(self, request: HttpRequest, queryset: Any) -> HttpResponseBase | None:
        """Clear the memories of the selected conversations."""
        return self._operate(CLEAR, request, queryset)

    @admin.action(description=RECOUNT.label, permissions=["recount"])
    def recount_tokens(self, request: HttpRequest, queryset: Any) -> HttpResponseBase | None:
        """Recount the tokens in the memories of the selected conversations."""
        return self._operate(RECOUNT, request, queryset)

    @admin.action(description=EXPORT.label, permissions=["export"])
    def export_conversations(self, request: HttpRequest, queryset: Any) -> HttpResponseBase | None:
        """Export the selected conversations to a file."""
        return self._operate(EXPORT, request, queryset)

    # This name replaces Django's own action, whose confirmation would list every message.
    @admin.action(description=ERASE.label, permissions=["delete"])
    def delete_selected(self, request: HttpRequest, queryset: Any) -> HttpResponseBase | None:
        """Erase the selected conversations with their histories."""
        with row_codec.unreadable_as(str(row_codec.UNREADABLE)):  # to erase it takes no key
            return self._operate(ERASE, request, queryset)

    def delete_view(  # type: ignore[override]  # HttpResponseBase, as actions return
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponseBase:
        with row_codec.unreadable_as(str(row_codec.UNREADABLE)):  # as above
            return self.operate_view(request, unquote(object_id), ERASE)

    def operate_at_view(
        self, request: HttpRequest, pk: int, sequence: int, operation: MessageOperation
    ) -> HttpResponseBase:
        """Run *operation* on a message if the request confirms it; otherwise ask for confirmation."""
        conversation = self.get_object(request, str(pk))
        if conversation is None:
            return self._gone(request)
        if not self._may(operation, request, conversation):
            raise PermissionDenied
        row = self._message(conversation, sequence)
        if not operation.suits(row):
            raise Http404
        if request.method != "POST" or request.POST.get("confirmed") != operation.name:
            is_readable = self.has_text_permission(request, conversation)
            context = pages.message_confirmation(operation, conversation, row, is_readable=is_readable)
            context["back"] = self._url("change", pk) + context["back"]
            note_read(request.user, [conversation], "read")
            return self._page(request, "message_confirmation", conversation, context)
        with_counterparts = operation.has_counterparts(row) and "with_counterparts" in request.POST
        here: Any = self.get_queryset(request)
        try:
            done = perform_at(operation, here, pk, sequence, request.user.pk, with_counterparts=with_counterparts)
        except downloads.NotPossibleError as exc:
            return self._unavailable(request, exc, self._url("change", pk))
        if done is None:
            return self._gone(request)
        self.message_user(request, done.words, messages.SUCCESS)
        return HttpResponseRedirect(self._url("change", done.conversation) + done.link)

    def operate_view(self, request: HttpRequest, pk: int | str, operation: AdminOperation) -> HttpResponseBase:
        """Run *operation* on a conversation if the request confirms it; otherwise ask for confirmation."""
        conversation = self.get_object(request, str(pk))
        if conversation is None:
            return self._gone(request)
        if not self._may(operation, request, conversation):
            raise PermissionDenied
        here: Any = self.get_queryset(request).filter(pk=conversation.pk)
        response = self._operate(operation, request, here, conversation)
        if response is not None:
            return response
        if operation is ERASE and not here.exists():
            return HttpResponseRedirect(self._url("changelist"))
        return HttpResponseRedirect(self._url("change", conversation.pk))

    def _operate(
        self,
        operation: AdminOperation,
        request: HttpRequest,
        queryset: ConversationQuerySet,
        conversation: Conversation | None = None,
    ) -> HttpResponseBase | None:
        """Run *operation* and return None if the request confirms it; otherwise ask for confirmation."""
        if request.method != "POST" or request.POST.get("confirmed") != operation.name:
            is_readable = self.has_text_permission(request, conversation)
            with row_codec.unreadable_as(str(row_codec.UNREADABLE)):
                context = pages.confirmation(request, operation, queryset, is_readable=is_readable)
            context["back"] = self._url("change", conversation.pk) if conversation else request.get_full_path()
            note_read(request.user, [each for each, *_names in context["shown"]], "listed")
            return self._page(request, "confirmation", conversation, context)
        if operation is EXPORT:
            return export(request, queryset)
        done, errors = perform(operation, queryset, request.user.pk)
        if done:
            self.message_user(request, operation.done % {"count": done}, messages.SUCCESS)
        for error in errors[:SHOWN]:
            self.message_user(request, error, messages.ERROR)
        return None

    def _gone(self, request: HttpRequest) -> HttpResponse:
        self.message_user(request, _("This conversation does not exist; it may have been erased."), messages.WARNING)
        return HttpResponseRedirect(self._url("changelist"))

    def _page(
        self, request: HttpRequest, name: str, conversation: Conversation | None, context: dict[str, Any]
    ) -> HttpResponse:
        title = str(self.opts.verbose_name_plural) if conversation is None else self._name(request, conversation)
        request.current_app = self.admin_site.name
        return TemplateResponse(
            request,
            f"admin/chatmemory/conversation/{name}.html",
            {
                **self.admin_site.each_context(request),
                "title": title,
                "original": title,
                "conversation": conversation,
                "memory_id": visible(conversation.memory_id) if conversation else "",
                "opts": self.opts,
                "media": self.media,
                "has_view_permission": True,
                **context,
            },
        )

    def _name(self, request: HttpRequest, conversation: Conversation) -> str:
        """Return the title of *conversation* if the user may read it, and otherwise its memory id."""
        title = conversation.title if self.has_text_permission(request, conversation) else ""
        return visible(title or conversation.memory_id)

    def _url(self, name: str, *args: object) -> str:
        view = f"admin:{self.opts.app_label}_{self.opts.model_name}_{name}"
        return reverse(view, args=args, current_app=self.admin_site.name)


def _stand_in(conversation: Conversation) -> Conversation:
    """Return an unsaved copy of *conversation* whose name is safe to display on Django's own pages."""
    return Conversation(pk=conversation.pk, memory_id=visible(conversation.memory_id))
