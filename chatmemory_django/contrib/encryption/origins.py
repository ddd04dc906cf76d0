"""
The origins of forks, whose rows are copied inside the database: where their texts were encrypted, which is their place.

An origin names each conversation that a fork was copied from, and the last sequence of which it has a copy. It is
encrypted for the fork, never accepted in plain text, and deleted once the fork's rows are encrypted for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from chatmemory_django.contrib.encryption.values import PREFIX, EncryptionError
from chatmemory_django.db.row_codec import Coder, Stored, address_of

if TYPE_CHECKING:
    from chatmemory_django.models import Conversation

_LABEL = "chatmemory_encryption.origin.text"


def read(using: str, conversation: Any, coder: Coder) -> Mapping[str, int]:
    """Return the last copied sequence by the key of each conversation in the origin of *conversation*."""
    from chatmemory_django.contrib.encryption.models import Origin  # models are not loaded yet
    from chatmemory_django.models.fields import as_stored

    rows = Origin.objects.using(using).filter(pk=conversation)
    stored = rows.values_list(as_stored("text"), flat=True).first()
    if stored is None:
        return {}
    if not stored.startswith(PREFIX):
        raise EncryptionError(f"The origin of the conversation with the key {conversation} is not encrypted.")
    origin: dict[str, int] = json.loads(coder.decode(stored, _LABEL, (conversation,)))
    return origin


def copied(codec: Any, source: Conversation, forked: Conversation, last: int) -> None:
    """See ``RowCodec.copied``: what has another owner's key is encrypted again."""
    from chatmemory_django.contrib.encryption.models import Origin  # models are not loaded yet

    using: Any = forked._state.db
    at = address_of(source, using)
    theirs = codec.at(at)
    own: Any = codec.at(address_of(forked))
    if forked.owner_id != source.owner_id and (codec.has_owner_keys or codec.owner_keys.has(at.owner, using)):
        _encrypt_again(theirs, own, forked)
    elif last:
        origin = {key: min(end, last) for key, end in read(using, source.pk, theirs).items()}
        text = own.encrypt(json.dumps({**origin, str(source.pk): last}), _LABEL, (forked.pk,))
        Origin.objects.using(using).create(conversation=forked, text=Stored(text))


def _encrypt_again(theirs: Coder, own: Coder, forked: Conversation) -> None:
    from chatmemory_django.models.fields import as_stored  # models are not loaded yet
    from chatmemory_django.models.messages import TEXTS, decoded_texts, encoded_texts
    from chatmemory_django.operations.one_by_one import messages_of, pages

    rows = messages_of(forked)
    for page in pages(rows, "sequence", "type", *map(as_stored, TEXTS)):
        for sequence, kind, *texts in page:
            if new := encoded_texts(own, sequence, kind, decoded_texts(theirs, sequence, kind, texts)):
                rows.filter(sequence=sequence).update(**new)
