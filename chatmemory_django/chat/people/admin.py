"""The admin of what waits for people: a queue of all conversations, and a desk for each, where one answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.forms.widgets import Script
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, path, reverse
from django.utils.translation import gettext as _

from chatmemory_django.access import ALL, AccessPolicy, access_policy, permitted
from chatmemory_django.admin.transcript import read_page
from chatmemory_django.chat.approvals import NotPendingError, desk
from chatmemory_django.chat.approvals.approving import by_policy
from chatmemory_django.chat.approvals.tables import MAX_REASON_LENGTH, Queue
from chatmemory_django.chat.conf import chat_settings
from chatmemory_django.chat.people.answering import answer_as, state_of
from chatmemory_django.chat.people.queue import KINDS, queue
from chatmemory_django.core.shown import visible
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Conversation
from chatmemory_django.models.message_codec import StorageError
from chatmemory_django.operations import OtherPersonError, admin_log, give_back, hand_over
from chatmemory_django.operations.one_by_one import for_writing
from chatmemory_django.operations.reading import note_read
from chatmemory_django.private import private_view
from chatmemory_django.provider import known_reader
from chatmemory_django.stores.base import ConversationErasedError

SHOWN = 100
"""How many rows the queue shows: those that wait longest."""

ME, NOBODY = "me", "nobody"


@admin.register(Queue)
class QueueAdmin(admin.ModelAdmin):
    """The queue of what waits for people, and the page of a conversation on which they answer and decide."""

    class Media:
        css = {"all": ("chatmemory/admin.css",)}  # noqa: RUF012  # as Django documents it
        js = (Script("chatmemory_chat/desk.js", defer=True),)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Queue | None = None) -> bool:
        """Return whether the user may view conversations, and answer in them or approve their calls."""
        policy = access_policy()
        return policy.sees_everybody(request, "answer") or policy.sees_everybody(request, "approve")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Queue | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Queue | None = None) -> bool:
        """Return whether the page deletes what it was on: it goes with that, and not by itself."""
        match = request.resolver_match
        return match is not None and "queue" not in (match.url_name or "")

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(private_view(self.desk_view))
        return [path("<int:pk>/", view, name="chatmemory_chat_queue_desk"), *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show what waits, of the ``?kind=``, and had by ``?person=``: me or nobody."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        policy = access_policy()
        kind = request.GET.get("kind")
        kind = kind if kind in KINDS else None
        person = request.GET.get("person", "")
        wanted = {ME: {"person": str(request.user.pk)}, NOBODY: {"person": ""}}.get(person, {})
        waiting = queue(
            permitted(policy, request, "answer"),
            permitted(policy, request, "view"),
            lambda conversation, approve_by: by_policy(policy, request, conversation)(approve_by),
            kind=kind,
            **wanted,
        )
        found = [each for each, _ in zip(waiting, range(SHOWN), strict=False)]
        names = _names({each.person for each in found if each.person})
        readable = {each.conversation.pk: bool(_types(request, policy, each.conversation)) for each in found}
        note_read(request.user, [each.conversation for each in found], "listed", partial(policy.is_own, request))
        context = {
            "title": _("Queue"),
            "original": {"handover": _("To answer"), "approval": _("To approve")}.get(kind or "", _("Everything")),
            "kind": kind or "",
            "person": person if person in {ME, NOBODY} else "",
            "rows": [(each, names.get(each.person, each.person), readable[each.conversation.pk]) for each in found],
            "visible_id": visible,
        }
        return self._page(request, "queue", {**context, **(extra_context or {})})

    def desk_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Show a conversation, who answers there, and what waits; do what a form of the page asks."""
        policy = access_policy()
        if not self.has_view_permission(request):
            raise PermissionDenied
        own = permitted(policy, request, "view").filter(pk=pk).select_related("owner")
        if request.method == "POST":
            if (conversation := for_writing(own).first()) is None:
                raise Http404
            if self._do(request, policy, conversation):
                return HttpResponseRedirect(request.get_full_path())
            own = for_writing(own)
        if (conversation := own.first()) is None:
            raise Http404
        types = _types(request, policy, conversation)
        may = by_policy(policy, request, conversation)
        own = Conversation.objects.using(conversation._state.db).filter(pk=pk)
        waiting = list(queue(own.none(), own, lambda _, approve_by: may(approve_by), kind="approval"))
        names = _names({each.person for each in waiting if each.person})
        note_read(request.user, [conversation], "read", partial(policy.is_own, request))
        context = {
            "title": visible((conversation.title if types else "") or conversation.memory_id),
            "conversation": conversation,
            "state": state_of(conversation),
            "is_mine": conversation.person == str(request.user.pk),
            "text": request.POST.get("text", ""),
            "may_answer": permitted(policy, request, "answer").filter(pk=pk).exists(),
            "calls": [(each, names.get(each.person, each.person)) for each in waiting],
            "is_readable": types >= ALL,  # the transcript of the admin has the system messages, too
            "reads_calls": MessageType.AI in types,
            "page": read_page(conversation, known_reader(conversation.memory_id), is_readable=types >= ALL),
            "max_length": chat_settings().MAX_TEXT_LENGTH,
            "max_reason": MAX_REASON_LENGTH,
            "stream": _stream(conversation),
            "message_opts": Conversation._meta,
        }
        return self._page(request, "desk", context)

    def change_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> HttpResponse:
        raise Http404

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        raise Http404

    def _do(self, request: HttpRequest, policy: AccessPolicy, conversation: Conversation) -> bool:
        """Do what a form asks, and return whether that was possible; if not, let the user know why."""
        forms: Mapping[str, Callable[[HttpRequest, Conversation], str]] = {
            "take": self._take,
            "give_back": self._give_back,
            "answer": self._answer,
            **desk.FORMS,
        }
        do = forms.get(request.POST.get("do", ""))
        if do is None:
            raise Http404
        is_answer = do in {self._take, self._give_back, self._answer}
        may_answer = permitted(policy, request, "answer").using(conversation._state.db).filter(pk=conversation.pk)
        if is_answer and not may_answer.exists():
            raise PermissionDenied
        try:
            with transaction.atomic(using=conversation._state.db):
                words = do(request, conversation)
                if words and not policy.is_own(request, conversation):
                    admin_log.log(conversation, request.user.pk, words)
        except OtherPersonError as exc:
            names = _names({exc.person})
            words = _("%(name)s has this. Take it over to go on.") % {"name": names.get(exc.person, exc.person)}
            messages.error(request, words)
        except ConversationErasedError:
            messages.error(request, _("This conversation does not exist; it may have been erased."))
        except NotPendingError:
            messages.error(request, _("This call does not wait any more."))
        except StorageError as exc:
            messages.error(request, str(exc))
        except ValueError:
            messages.error(request, _("This text cannot be stored: it is empty, or too long."))
        else:
            return True
        return False

    def _take(self, request: HttpRequest, conversation: Conversation) -> str:
        user: Any = request.user
        found = hand_over(conversation, user, takes_over="takes_over" in request.POST)
        return str(admin_log.HANDED_OVER) if found.version != conversation.version else ""

    def _give_back(self, request: HttpRequest, conversation: Conversation) -> str:
        found = give_back(conversation)
        return str(admin_log.GIVEN_BACK) if found.version != conversation.version else ""

    def _answer(self, request: HttpRequest, conversation: Conversation) -> str:
        user: Any = request.user
        text, name = request.POST.get("text", ""), request.POST.get("id") or None
        sequence = answer_as(conversation, user, text, client_message_id=name, takes_over="takes_over" in request.POST)
        return admin_log.ANSWERED % {"number": sequence} if sequence >= conversation.next_sequence else ""

    def _page(self, request: HttpRequest, name: str, context: dict[str, Any]) -> HttpResponse:
        request.current_app = self.admin_site.name
        shared = {"opts": self.opts, "media": self.media, "has_view_permission": True, "original": context["title"]}
        shown = {**self.admin_site.each_context(request), **shared, **context}
        return TemplateResponse(request, f"admin/chatmemory_chat/queue/{name}.html", shown)


def _types(request: HttpRequest, policy: AccessPolicy, conversation: Conversation) -> Set[MessageType]:
    """Return the types of messages that the user may read in *conversation*."""
    return frozenset(policy.readable_types(request, own=policy.is_own(request, conversation)))


def _names(keys: set[str]) -> dict[str, str]:
    """Return the names of the users with these *keys*, by key."""
    users, found = get_user_model(), []
    for key in keys:
        try:
            found.append(users._meta.pk.clean(key, None))
        except ValidationError:
            continue
    policy = access_policy()
    return {str(user.pk): policy.author_name(user) for user in users._default_manager.filter(pk__in=found)}


def _stream(conversation: Conversation) -> str:
    """Return the address at which the chat streams what is new in *conversation*; empty where it is not served."""
    try:
        return f"{reverse('chatmemory_chat:stream', kwargs={'chat_id': conversation.memory_id})}?stays=true"
    except NoReverseMatch:
        return ""
