"""The store for agents, and for the adapters of their user interfaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.contrib.auth import get_user_model
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.db import router
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
)
from pydantic_ai.messages import ModelMessagesTypeAdapter

from chatmemory_django.contrib.adapters.pydantic_ai import records, writing
from chatmemory_django.contrib.adapters.pydantic_ai.entries import EntryId, read_to
from chatmemory_django.core.limits import memory_key
from chatmemory_django.db.threads import to_its_end
from chatmemory_django.db.transactions import tried_again
from chatmemory_django.models import Conversation, Message
from chatmemory_django.stores.django import DjangoChatMemoryStore

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

APP = "chatmemory_django.contrib.adapters.records"


class DjangoConversationStore(ConversationStore):
    """
    Conversations of pydantic-ai in the site's database; a conversation's id is its memory id.

    A request or a response is stored as one or more messages, and returned as it was given, along with the messages
    that the site added. A scope is the primary key of a user, who owns all conversations with that scope. Without a
    scope, as in any ``ConversationStore``, every conversation is accessible: always pass one if an id comes from a
    request. ``delete`` erases the conversation with all its messages. A fork is a separate conversation with a copy of
    the messages.
    """

    def __init__(self) -> None:
        if not apps.is_installed(APP):
            raise ImproperlyConfigured(
                f"DjangoConversationStore needs the app of its records: add {APP!r} to INSTALLED_APPS, and run migrate."
            )
        self._run = DjangoChatMemoryStore().run

    def get_owner(self, scope: str) -> AbstractBaseUser | None:
        """
        Return the user for *scope*, or None if there is none; called where the database can be used.

        Override it together with ``get_scope`` if scopes are something other than primary keys of users.
        """
        users = get_user_model()
        try:
            key = users._meta.pk.to_python(scope)
        except ValidationError:
            return None
        # The key must match exactly: "7 " is not "7".
        return users._default_manager.filter(pk=key).first() if str(key) == scope else None

    def get_scope(self, owner_key: object) -> str | None:
        """Return the scope of the user whose primary key is *owner_key*; None for no user."""
        return None if owner_key is None else str(owner_key)

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Return the record of a conversation, even if the site began it; None if it has no messages."""
        return await self._run(self._find_record, conversation_id)

    async def read_records(self, *, scope: str | None = None, limit: int | None = None) -> list[ConversationRecord]:
        """
        Return at most *limit* records with *scope*, or all, those that were saved last first.

        With a *scope*, these include the user's conversations that only the site has written to.
        """
        return await self._run(self._find_records, scope, limit)

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """
        Store *record* and *new_entries*, all or none.

        Raises:
            ConversationConflict: Another writer changed the conversation, or it belongs to another user.
            UserError: Some of the data cannot be stored.

        """
        await to_its_end(self._run(self._save, record, new_entries, expected_revision))

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """
        Erase a conversation with all its messages. Its forks remain: they have copies.

        Raises:
            ConversationConflict: Another writer changed or erased it in the meantime.

        """
        await to_its_end(self._run(self._erase, conversation_id, expected_revision))

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Return the entry *entry_id*; raise ``LookupError`` if there is none."""
        return (await self.read_history(entry_id, limit=1))[-1]

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """
        Return the entries up to *head_id*, or the last *limit* of them, in order; raise ``LookupError`` for an unknown
        id.
        """
        return [] if head_id is None or limit == 0 else await self._run(self._find_history, head_id, limit)

    def _find_history(self, head_id: str, limit: int | None) -> list[ConversationEntry]:
        messages = Message.objects.using(router.db_for_read(Message))
        # One more than requested: the entry before the first one is its parent.
        found = read_to(messages, head_id, None if limit is None else limit + 1)
        if not found:
            raise LookupError(f"There is no entry {head_id!r}.")
        model_messages = ModelMessagesTypeAdapter.validate_python([entry.item for entry in found])
        parents = [*(entry.id for entry in found[1:]), None]
        entries = [
            ConversationEntry(id=entry.id, parent_id=parent, message=message)
            for entry, parent, message in zip(found, parents, model_messages, strict=True)
        ]
        return entries[:limit][::-1]

    def _find_record(self, conversation_id: str) -> ConversationRecord | None:
        try:
            named = DjangoChatMemoryStore().named(conversation_id, router.db_for_read(Conversation))
        except (TypeError, ValueError):  # no conversation can have such an id
            return None
        found = records.with_heads(named).first()
        return None if found is None else self._owned(found)

    def _find_records(self, scope: str | None, limit: int | None) -> list[ConversationRecord]:
        using = router.db_for_read(Conversation)
        conversations = Conversation.objects.using(using)
        found = records.last_saved(scope, limit, using)
        owner = None if scope is None else self.get_owner(scope)
        if owner is not None:
            others = conversations.filter(owner=owner.pk).exclude(record__scope=scope)
            found += records.with_heads(others).order_by("-updated_at")[:limit]
        read = [record for each in found if (record := self._owned(each)) is not None]
        in_scope = [record for record in read if scope is None or record.scope == scope]
        return sorted(in_scope, key=lambda record: record.updated_at, reverse=True)[:limit]

    def _owned(self, conversation: Any) -> ConversationRecord | None:
        """Return the record of *conversation*, with its current owner as scope."""
        record = records.read(conversation)
        if record is None:
            return None
        scope, owner_scope = record.scope, self.get_scope(conversation.owner_id)
        if scope != owner_scope and self._key_of(scope) != conversation.owner_id:
            scope = owner_scope
        head_id = None if record.head_id is None else EntryId(record.head_id, conversation.pk)
        branches: list[str] = [EntryId(tip, conversation.pk) for tip in record.branches]
        return replace(record, scope=scope, head_id=head_id, branches=branches)

    def _key_of(self, scope: str | None) -> object:
        owner = None if scope is None else self.get_owner(scope)
        return None if owner is None else owner.pk

    def _save(
        self, record: ConversationRecord, new_entries: Sequence[ConversationEntry], expected_revision: str | None
    ) -> None:
        entries = writing.checked(new_entries)
        owner = None if record.scope is None else self.get_owner(record.scope)
        using = router.db_for_write(Conversation)
        tried_again(using, partial(writing.write, record, entries, expected_revision, owner, using))

    def _erase(self, conversation_id: str, expected_revision: str) -> None:
        try:
            memory_key(conversation_id)
        except (TypeError, ValueError):
            raise ConversationConflict(conversation_id) from None
        using = router.db_for_write(Conversation)
        tried_again(using, partial(writing.delete, conversation_id, expected_revision, using))
