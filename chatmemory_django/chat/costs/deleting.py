"""What goes from calls of models when a user is deleted who is in another database."""

from __future__ import annotations

from typing import Any

from django.db import models, router

from chatmemory_django.chat.costs.tables import CallSum, ModelCall


def forget_payer(sender: type[models.Model], instance: models.Model, **kwargs: Any) -> None:
    """Leave no call of a model, and no sum of calls, that names the user *instance*, which is about to be deleted."""
    hint = {"owner_key": str(instance.pk)}
    for model in (ModelCall, CallSum):
        rows = model._default_manager.using(router.db_for_write(model, **hint)).filter(owner=instance.pk)
        while rows.update(owner=None):  # again for sums that were merged in the meantime
            pass
