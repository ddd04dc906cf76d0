"""What else is erased where Django deletes a conversation or a user."""

from __future__ import annotations

from typing import Any

from django.db import models, router

from chatmemory_django.models.conversations import Conversation, ConversationQuerySet
from chatmemory_django.models.copies import forget_copies, of_owners, refuse_held_owner
from chatmemory_django.models.fields import without_texts
from chatmemory_django.models.remains import can_leave, delete_rows, is_long, leave_rows


def erase_messages(
    sender: type[Conversation], instance: Conversation, using: str, origin: object = None, **kwargs: Any
) -> None:
    """
    Delete the messages of *instance*, which is about to be deleted, after locking it against other writers, and what
    other apps keep of it. Those of a long conversation may be left until after the commit.
    """
    if isinstance(origin, ConversationQuerySet):
        return  # its ``delete`` has done so for the whole batch
    rows = Conversation.objects.using(using).filter(pk=instance.pk).select_for_update()
    for key, memory_id, is_left in rows.values_list("pk", "memory_id", is_long()):  # *instance* may be outdated
        if is_left and can_leave(using):
            leave_rows(using, key)
        else:
            delete_rows(using, [key])
        forget_copies(using, {key: memory_id}, erased=True)


def forget_owner(sender: type[models.Model], instance: models.Model, **kwargs: Any) -> None:
    """Erase what is stored of the user *instance*, which is about to be deleted from another database."""
    using = router.db_for_write(Conversation, owner_key=str(instance.pk))
    Conversation.objects.using(using).filter(owner=instance.pk).delete()
    erase_of_owner(instance.pk, using)


def erase_of_owner(owner: object, using: str, *, dry_run: bool = False) -> dict[str, int]:
    """
    Erase what belongs to *owner*, the primary key of a user, and to no conversation, in the database *using*; nothing
    in a *dry_run*. Return how many rows that are, by what they are called.

    Raises ``ProtectedError`` if nothing of the owner may be erased.
    """
    found = {each.name: each.model._default_manager.using(using).filter(owner=owner) for each in of_owners}
    counts = {name: rows.count() for name, rows in found.items()}
    if any(counts.values()):
        refuse_held_owner(using, owner)
    if not dry_run:
        counts = {name: without_texts(rows).delete()[0] for name, rows in found.items()}
    return {name: count for name, count in counts.items() if count}
