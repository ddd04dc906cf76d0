"""The keys of owners are replaced: each gets a new key, and the old one is deleted once nobody needs it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Any, NamedTuple

from django.db.models import QuerySet
from django.utils import timezone

from chatmemory_django.contrib.encryption.ciphers import Cipher
from chatmemory_django.contrib.encryption.kept import needed
from chatmemory_django.contrib.encryption.keys import REPLACED_FOR
from chatmemory_django.contrib.encryption.models import OwnerKey
from chatmemory_django.db.batches import in_parts
from chatmemory_django.models import Conversation

OWNERS = 500
"""Of how many owners one query reads the keys, or looks for what needs them."""


class Replaced(NamedTuple):
    """How many keys of owners were replaced, and of those that were before, how many deleted, and how many stay."""

    new: int = 0
    deleted: int = 0
    stay: int = 0


def replace_keys(
    cipher: Cipher, conversations: QuerySet[Conversation], others: Collection[str] = (), *, dry_run: bool = False
) -> Replaced:
    """
    Give each owner of *conversations*, and each of the *others*, who has a single key a new one, and delete the
    replaced keys of the rest.

    What the old keys have encrypted is encrypted again by ``encrypt``, after this. A replaced key is deleted a day
    after that, see ``REPLACED_FOR``, if nothing in the database is encrypted with it. Nothing is written in a
    *dry_run*. Each owner is a transaction, so it can be stopped at any time and called again.
    """
    using: Any = conversations.db
    to_key: Any = Conversation._meta.get_field("owner").to_key
    ids = conversations.exclude(owner=None).order_by().values_list("owner", flat=True).distinct()
    count = Replaced()
    for owners in in_parts(sorted({*map(to_key, ids), *others}), OWNERS):
        keys: defaultdict[str, list[OwnerKey]] = defaultdict(list)
        for key in OwnerKey.objects.using(using).filter(owner__in=owners).order_by("owner", "number"):
            keys[key.owner].append(key)
        single = [owner for owner, own in keys.items() if len(own) == 1]
        old = {key.pk: own[-1] for own in keys.values() for key in own[:-1]}
        expired = [key for key, newest in old.items() if newest.created_at <= timezone.now() - REPLACED_FOR]
        unneeded = set(expired) - needed(expired, using)
        new = len(single)
        if not dry_run:
            new = sum(cipher.owner_keys.replace(owner, using) for owner in single)
            OwnerKey.objects.using(using).filter(pk__in=unneeded).delete()
        count = Replaced(count.new + new, count.deleted + len(unneeded), count.stay + len(old) - len(unneeded) + new)
    return count
