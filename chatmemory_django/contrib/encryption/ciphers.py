"""The codec of rows of this app: which key encrypts and decrypts what is stored, and for whom."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import cached_property, partial
from types import EllipsisType
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from chatmemory_django.contrib.encryption import origins, places
from chatmemory_django.contrib.encryption.conf import Encryption
from chatmemory_django.contrib.encryption.keys import OWNER_PREFIX, Keys, OwnerKeys
from chatmemory_django.contrib.encryption.values import (
    FILE,
    PREFIX,
    TITLE,
    UNPLACED,
    EncryptionError,
    Key,
    MissingKeyError,
    changed,
    decrypt,
    decrypt_all,
    decrypter,
    encrypt,
    head_of,
    key_id_of,
    seal,
    unseal,
    unsealed_size,
)
from chatmemory_django.db import row_codec
from chatmemory_django.db.row_codec import (
    Address,
    EncryptedError,
    RowKey,
    escaped,
    instead_of,
    looks_encoded,
    unescaped,
    unreadable_as,
)
from chatmemory_django.private import private
from chatmemory_django.security import SecurityEvent, report

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from chatmemory_django.models import Conversation, ConversationQuerySet

APP = "chatmemory_django.contrib.encryption"

ADDED_BYTES = 192
"""What encryption adds to a text, besides Base64: an id of 40 characters, the place of a message, nonce and tag."""

MESSAGE = "chatmemory.message."
"""What the names of columns of messages begin with, whose sequences count in a conversation."""

INSIDE = (MESSAGE, "chatmemory_chat.toolapproval.")
"""What the names of columns begin with whose places name their conversation."""


class Cipher:
    """Encrypts with the key of the site, or with the owners' keys, as the settings have it when it is first used."""

    @cached_property
    def has_owner_keys(self) -> bool:
        """See ``RowCodec``."""
        return bool(Encryption.current().OWNER_KEYS)

    @cached_property
    def refuses_plain(self) -> bool:
        """Whether what is in plain text, or bound to no row, is an error."""
        return Encryption.current().PLAIN == "refuse"

    @cached_property
    def writes_plain(self) -> bool:
        """Whether nothing is encrypted any more, and all that is encrypted is read."""
        return Encryption.current().PLAIN == "write"

    @cached_property
    @private
    def keys(self) -> Keys:
        """The keys of the site."""
        options = Encryption.current()
        keys: Keys = import_string(options.CLASS)(options.KEYS)
        return keys

    @cached_property
    def owner_keys(self) -> OwnerKeys:
        """The keys of owners."""
        seconds = Encryption.current().OWNER_KEY_SECONDS
        return OwnerKeys(self.keys, refuses_unbound=self.refuses_plain, seconds=seconds)

    def at(self, address: Address) -> _Coder:
        """See ``RowCodec``."""
        return _Coder(self, address)

    def selected(self, field: Any, table: str, connection: BaseDatabaseWrapper) -> str:
        """See ``RowCodec``."""
        return places.selected(field, table, connection)

    def decoder(self, field: Any, using: str) -> Callable[..., Any]:
        """See ``RowCodec``."""
        return places.decoder(self, field, using)

    def max_size(self, size: int) -> int:
        """See ``RowCodec``."""
        return size + size // 3 + ADDED_BYTES

    def report(self, conversations: ConversationQuerySet, write: Callable[[str], object]) -> int:
        """See ``RowCodec``."""
        from chatmemory_django.contrib.encryption.kept import (
            MANY_VALUES,
            keys_in_use,
            worn,
        )  # models are not loaded yet

        found = keys_in_use(conversations, self.owner_keys)
        which = {
            "": "in plain text",
            UNPLACED: "encrypted by an earlier version, and bound to no row",
            OWNER_PREFIX: "encrypted with keys of owners",
        }
        for key_id, count in sorted(found.items()):
            write(f"Values {which.get(key_id, f'encrypted with the key {key_id!r}')}: {count:,}.")
        findings = found[""] + found[UNPLACED] if self.refuses_plain else 0
        for key_id in worn(found, conversations):
            cure = "encrypt_chatmemory --rekey-owners" if key_id.startswith(OWNER_PREFIX) else "a new first key in KEYS"
            write(
                f"The key {key_id!r} has {MANY_VALUES:,} values or more, and may encrypt 2**32, with those that are "
                f"gone: replace it, by {cure}."
            )
            findings += 1
        return findings

    def copied(self, source: Conversation, forked: Conversation, last: int) -> None:
        """See ``RowCodec``."""
        origins.copied(self, source, forked, last)

    def saving(self, conversation: Conversation, fields: Collection[str], using: str) -> AbstractContextManager[None]:
        """See ``RowCodec``."""
        if not {"memory_id", "owner", "owner_id", "title"} & set(fields):
            return nullcontext()
        from chatmemory_django.contrib.encryption.renewing import moving  # models are not loaded yet

        return moving(self, conversation, fields, using)

    def update(self, rows: Any, columns: Mapping[str, Any]) -> int:
        """See ``RowCodec``."""
        from chatmemory_django.contrib.encryption import updates  # models are not loaded yet

        return updates.update(rows, columns)

    def place(self, rows: Any, instances: Iterable[Any], columns: Iterable[str]) -> None:
        """See ``RowCodec``."""
        from chatmemory_django.contrib.encryption import updates  # as above

        updates.place(rows, instances, columns)

    def key(self, key_id: str, using: str) -> Key | None:
        """Return the key *key_id*, of the site or of an owner in the database *using*, or None."""
        return self.owner_keys.get(key_id, using) if key_id.startswith(OWNER_PREFIX) else self.keys.get(key_id)


class _Coder:
    """What encrypts and decrypts at one address; see ``row_codec.Coder``."""

    def __init__(self, cipher: Cipher, address: Address) -> None:
        self.writes_plain = cipher.writes_plain
        self._cipher = cipher
        self._address = address
        self._using = address.using
        self._is_begun = address.conversation is None and address.memory_id is not None
        self._given = _owner_of(address)
        self._decrypters: dict[str, Callable[[str, str], str | None]] = {}

    def encode(self, text: str, column: str, row: RowKey = ()) -> str:
        return escaped(text) if self.writes_plain else self.encrypt(text, column, row)

    def encrypt(self, text: str, column: str, row: RowKey = ()) -> str:
        """Return *text* encrypted, whatever else is written in plain."""
        return encrypt(text, self.current(column, row), f"{self._start(column)}{self._rest(row)}"[:-1])

    def decode(self, stored: str, column: str, row: RowKey = ()) -> str:
        known = self._decrypters.get(column)
        try:
            text = None if known is None else known(stored, self._rest(row))
            return self._decrypted(stored, column, row) if text is None else text
        except EncryptionError as exc:
            self._report(exc)
            return instead_of(stored, exc)

    def _report(self, error: EncryptionError) -> None:
        """Report a value that is not what was stored there, once: an origin is read for another value."""
        if not isinstance(error, MissingKeyError) and not error.is_reported:
            error.is_reported = True
            owner = self._address.owner
            report(SecurityEvent.ALTERED, user=None if owner is ... else owner, memory_id=self._address.memory_id)

    def decode_all(
        self, stored: Sequence[str], column: str, sequences: Sequence[int], types: Sequence[str]
    ) -> list[str]:
        with suppress(EncryptionError):  # one by one, the error names what is wrong
            key = self._key_of(stored[0], column)
            if key is not None:
                start = f"{PREFIX}{key.id}:{self._start(column)}"
                heads = [f"{start}{sequence}:{kind}:" for sequence, kind in zip(sequences, types, strict=True)]
                return decrypt_all(stored, key, heads)
        rows = zip(sequences, types, strict=True)
        return [self.decode(each, column, row) for each, row in zip(stored, rows, strict=True)]

    def encode_file(self, content: bytes, owner: str, sha256: str) -> tuple[bytes, str]:
        if self.writes_plain:
            return content, ""
        key = self.current(FILE)
        return seal(content, key, f"{FILE}:{owner}:{sha256}:{len(content)}"), f"{PREFIX}{key.id}"

    def decode_file(self, stored: bytes, key_id: str, owner: str, sha256: str) -> bytes:
        if not key_id.startswith(PREFIX):
            self._refuse(FILE)
        if not key_id:
            return stored
        key_id = key_id.removeprefix(PREFIX)
        key = self._cipher.key(key_id, self._using)
        if key is None:
            raise MissingKeyError(key_id, FILE)
        _check_owner(key, owner or None, FILE)
        return unseal(stored, key, f"{FILE}:{owner}:{sha256}:{unsealed_size(stored, key)}")

    def head(self, column: str) -> str:
        """Return what the values of *column* begin with that are encrypted for this address, with the key of now."""
        rest = self._rest(()) if column == TITLE else ""
        return f"{PREFIX}{self.current(column).id}:{self._start(column)}{rest}"

    def current(self, column: str, row: RowKey = ()) -> Key:
        """Return the key that encrypts *column* now."""
        if not self._cipher.has_owner_keys:
            return self._cipher.keys.current()
        owner = self._owner
        if owner is None:
            raise EncryptionError(
                f"With OWNER_KEYS, {column} can only be written where its owner is known: "
                "use the methods of the package, Conversation.save(), or encryption.for_owner(…)."
            )
        if owner.key is None:
            return self._cipher.keys.current()
        if self._using not in owner.keys:
            living = owner.living
            if living is None and self._is_begun and row:
                living = row[0]  # an answer, say, whose conversation is known by its memory id
            # A title is encrypted before its conversation is there.
            is_there = None if column == TITLE else partial(self._is_there, owner.key)
            owner.keys[self._using] = self._cipher.owner_keys.of(owner.key, self._using, living, is_there)
        return owner.keys[self._using]

    @cached_property
    def _owner(self) -> _Owner | None:
        """Whose the conversation is: asked for where nobody has named it."""
        conversation = self._address.conversation
        if self._given is not None or conversation is None:
            return self._given
        found = _owner_in(self._using, conversation)
        return None if isinstance(found, EllipsisType) else _Owner(found, conversation)

    def _is_there(self, owner: str) -> bool:
        """Return whether the conversation of *owner* is there, if one is named, and lock it: it cannot go then."""
        from chatmemory_django.models import Conversation  # models are not loaded yet

        key, memory_id = self._address.conversation, self._address.memory_id
        if key is None and memory_id is None:
            return True
        named: dict[str, Any] = {"owner": owner, **({"memory_id": memory_id} if key is None else {"pk": key})}
        own = Conversation.objects.using(self._using).filter(**named)
        return own.select_for_update().values_list("pk").first() is not None

    @cached_property
    def origin(self) -> Mapping[str, int]:
        """The origin of the conversation, see ``origins``."""
        with unreadable_as(...):  # what a list shows of a value is no origin
            return origins.read(self._using, self._address.conversation, self)

    def _start(self, column: str) -> str:
        """Return what the places of *column* begin with."""
        if not column.startswith(INSIDE):
            return f"{column}:"
        if self._address.conversation is None:
            raise EncryptedError(f"{column} is encrypted for its conversation, which has no key yet.")
        return f"{column}:{self._address.conversation}:"

    def _rest(self, row: RowKey) -> str:
        """Return how the place of *row* goes on."""
        if len(row) == 2:  # as nearly all are
            return f"{row[0]}:{row[1]}:"
        if row:
            return f"{row[0]}:"
        if self._address.memory_id is None:
            raise EncryptedError("A title is encrypted for the memory id of its conversation, which is not known here.")
        return f"{self._address.memory_id}:"

    def _decrypted(self, stored: str, column: str, row: RowKey) -> str:
        key = self._key_of(stored, column)
        if key is None:
            self._refuse(column)
            return unescaped(stored)
        start, rest = self._start(column), self._rest(row)
        if stored.startswith(UNPLACED):
            self._refuse(column)
            return decrypt(stored, key, start)
        self._decrypters[column] = decrypter(key, f"{PREFIX}{key.id}:{start}")
        text = self._decrypters[column](stored, rest)
        return self._copied(stored, key, column, rest) if text is None else text

    def _key_of(self, stored: str, column: str) -> Key | None:
        """Return the key of *stored*, which may be used here; None if that is plain text."""
        key_id = key_id_of(stored)
        key = None if key_id is None else self._cipher.key(key_id, self._using)
        if key is None:
            if key_id is not None and looks_encoded(stored):
                raise MissingKeyError(key_id, column)
            return None
        if key.owner is not None and self._owner is not None:
            _check_owner(key, self._owner.key, column)
        return key

    def _refuse(self, column: str) -> None:
        """Raise ``EncryptionError`` if what is in plain text, or bound to no row, is not to be read."""
        if self._cipher.refuses_plain:
            raise EncryptionError(
                f"A value of {column} is in plain text, or bound to no row, which CHATMEMORY['ENCRYPTION']['PLAIN'] "
                'refuses. With "read", encrypt_chatmemory encrypts it.'
            )

    def _copied(self, stored: str, key: Key, column: str, rest: str) -> str:
        """Return the text of a message that was copied from the conversation for which it is encrypted."""
        source, _, same = stored[len(head_of(key, column)) :].partition(":")
        sequence, _, _ = rest.partition(":")
        if column.startswith(MESSAGE) and same.startswith(rest) and int(sequence) <= self.origin.get(source, 0):
            return decrypt(stored, key, f"{column}:{source}:{rest[:-1]}")
        raise changed(column, key)


def _check_owner(key: Key, owner: str | None, column: str) -> None:
    if key.owner is not None and key.owner != owner:
        what = f"A value of {column} is encrypted with the key {key.id!r}, which is another owner's."
        raise EncryptionError(what, key.id)


class _Owner:
    """Whom is encrypted for, and the owner's keys by database, so that each is asked for once."""

    def __init__(self, key: str | None, living: Hashable) -> None:
        self.key = key
        self.living = living
        self.keys: dict[str, Key] = {}


_named: ContextVar[_Owner | None] = ContextVar("chatmemory_owner", default=None)


@contextmanager
def for_owner(owner: object, living: Hashable = None) -> Iterator[None]:
    """
    Encrypt for *owner*, the primary key of a user or None, what names no owner in this block, and decrypt nothing of
    others there.

    It has an effect only with ``OWNER_KEYS``. *living* is the key of a conversation of theirs that a write in this
    block changes, or anything else that is gone once the owner is erased; see ``OwnerKeys.of``.
    """
    token = _named.set(_Owner(None if owner is None else str(owner), living))
    try:
        yield
    finally:
        _named.reset(token)


def _owner_of(address: Address) -> _Owner | None:
    """Return whose *address* is: the owner of the block that this is in, if it has no other one."""
    named = _named.get()
    if isinstance(address.owner, EllipsisType) or (named is not None and named.key == address.owner):
        return named
    return _Owner(address.owner, address.conversation)


def _owner_in(using: str, conversation: Hashable) -> str | EllipsisType | None:
    """Return the owner of *conversation* in the database, as in an ``Address``; ... if there is no such row."""
    from chatmemory_django.models import Conversation  # models are not loaded yet

    key: Any = conversation
    rows: Any = Conversation.objects.using(using).filter(pk=key)
    for owner in rows.values_list("owner", flat=True):
        return Conversation._meta.get_field("owner").to_key(owner)
    return ...


def installed() -> Cipher | None:
    """Return what encrypts and decrypts, or None if the app is not installed."""
    return row_codec.installed if isinstance(row_codec.installed, Cipher) else None


def install() -> None:
    """Let what is written and read be encrypted and decrypted with the keys that the settings have now."""
    row_codec.installed = Cipher()


def _reset(setting: str, **kwargs: Any) -> None:
    is_own = row_codec.installed is None or installed() is not None
    if setting in {"CHATMEMORY", "INSTALLED_APPS"} and is_own:
        row_codec.installed = Cipher() if apps.is_installed(APP) else None


setting_changed.connect(_reset)
