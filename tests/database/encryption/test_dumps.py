"""
Whatever is dumped and restored, and wherever keys are by then: what is read is what was written there, or an error.

A walk takes random steps as an operator and the users do, ends commands in the middle, and looks at every message after
each step. Whether one can be read is known from the tables alone: from the key that its value names, where that is.
"""

import base64
import io
import random
from collections import defaultdict
from contextlib import suppress
from copy import deepcopy
from typing import Any, NamedTuple

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.db import connection

from chatmemory_django.contrib.encryption import EncryptionError, MissingKeyError
from chatmemory_django.contrib.encryption.ciphers import install
from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.operations import erase, fork
from chatmemory_django.provider import get_chat_memory
from tests.database.encryption.dumps import dump, restore
from tests.database.encryption.test_replaced_keys import days_later
from tests.database.interleaving import ended_at

pytestmark = pytest.mark.django_db(transaction=True)

TABLES = "chatmemory_conversation", "chatmemory_message", "chatmemory_encryption_origin"
KEYS = "chatmemory_encryption_ownerkey"
STEPS = 40


def rows(statement: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


class Dump(NamedTuple):
    tables: list[Any]
    has_keys: bool
    texts: dict[str, list[str]]
    destroyed: set[tuple[str, str]]


class Walk:
    """A site, what is in its conversations, and what is destroyed: the texts of each owner whose key is gone."""

    def __init__(self, seed: int, settings: Any) -> None:
        self.random, self.settings = random.Random(seed), settings
        users = get_user_model().objects
        self.owners = {None: "", **{users.get_or_create(username=name)[0]: name for name in ("ann", "eve")}}
        self.names = ["k0"]
        self.lost: set[str] = set()
        self.texts: dict[str, list[str]] = {}
        self.written: defaultdict[str, set[str]] = defaultdict(set)
        self.destroyed: set[tuple[str, str]] = set()
        self.dumps: list[Dump] = []
        self.count = 0
        self.outcomes: defaultdict[bool, int] = defaultdict(int)
        self.restart()

    def restart(self) -> None:
        keys = [f"{name}:{base64.b64encode(name.encode().ljust(32)).decode()}" for name in self.there]
        self.settings.CHATMEMORY = {"ENCRYPTION": {"KEYS": keys, "OWNER_KEYS": True}}
        install()

    @property
    def there(self) -> list[str]:
        """The keys of the site that the settings have, the newest first."""
        return [name for name in reversed(self.names) if name not in self.lost]

    def step(self) -> None:
        steps = [self.write] * 6 + [self.fork, self.give, self.erase, self.rotate, self.encrypt, self.rekey]
        steps += [self.take_keys_out, self.put_keys_back, self.dump, self.dump, self.restore, self.restore]
        do = self.random.choice(steps)
        with suppress(EncryptionError, CommandError):
            do()
        self.restart()

    def some(self) -> Conversation | None:
        found = list(Conversation.objects.defer("title").order_by("pk"))
        return self.random.choice(found) if found else None

    def write(self) -> None:
        owner = self.random.choice(list(self.owners))
        memory_id = f"{self.owners[owner]}{self.random.randrange(3)}"
        there = Conversation.objects.defer("title").filter(memory_id=memory_id).first()
        owner = owner if there is None else there.owner
        self.count += 1
        text = f"text {self.count}"
        get_chat_memory(memory_id, owner=owner).add(UserMessage(text))
        self.note(memory_id, owner, [*self.texts.get(memory_id, []), text], owner)

    def note(self, memory_id: str, owner: Any, texts: list[str], giver: Any) -> None:
        """Note that *owner* has *texts*, which were encrypted for them if they have them from another one."""
        self.texts[memory_id] = texts
        if owner is not None:
            self.written[str(owner.pk)] |= set(texts)
        if owner is not None and owner != giver:
            self.destroyed -= {(str(owner.pk), text) for text in texts}

    def fork(self) -> None:
        if source := self.some():
            self.count += 1
            owner = self.random.choice([source.owner, *self.owners])
            forked = fork(source, f"fork{self.count}", owner=owner)
            self.note(forked.memory_id, owner, list(self.texts[source.memory_id]), source.owner)

    def give(self) -> None:
        if given := self.some():
            giver, given.owner = given.owner, self.random.choice(list(self.owners))
            given.save(update_fields=["owner"])
            self.note(given.memory_id, given.owner, self.texts[given.memory_id], giver)

    def erase(self) -> None:
        owner = self.random.choice(list(self.owners))
        theirs = Conversation.objects.filter(owner=owner)
        for memory_id in theirs.values_list("memory_id", flat=True):
            del self.texts[memory_id]
        erase(theirs)
        if owner is not None:
            self.destroyed |= {(str(owner.pk), text) for text in self.written[str(owner.pk)]}

    def rotate(self) -> None:
        self.names.append(f"k{len(self.names)}")
        self.restart()
        self.encrypt()

    def encrypt(self, *options: str) -> None:
        """Run the command, which is ended at any statement, or not."""
        with ended_at(self.random.choice([self.random.randrange(1, 80), 0])):
            call_command("encrypt_chatmemory", *options, stdout=io.StringIO(), stderr=io.StringIO(), verbosity=0)

    def rekey(self) -> None:
        if self.random.random() < 0.5:
            days_later()
        self.encrypt("--rekey-owners")

    def take_keys_out(self) -> None:
        self.lost = set(self.names[:-1])

    def put_keys_back(self) -> None:
        self.lost = set()

    def dump(self) -> None:
        self.take(has_keys=self.random.random() < 0.4)

    def take(self, *, has_keys: bool) -> None:
        tables = [dump(table) for table in (*TABLES, *([KEYS] if has_keys else []))]
        self.dumps.append(Dump(tables, has_keys, deepcopy(self.texts), set(self.destroyed)))

    def restore(self) -> None:
        """Put a dump in the place of what is there; a table that is not in it stays."""
        if self.dumps:
            self.put(self.random.choice(self.dumps))

    def put(self, found: Dump) -> None:
        with connection.cursor() as cursor:
            for table, _, _ in reversed(found.tables):
                cursor.execute(f"DELETE FROM {table}")
        for table in found.tables:
            restore(*table)
        self.texts = deepcopy(found.texts)
        if found.has_keys:
            self.destroyed = set(found.destroyed)

    def look(self) -> None:
        """Compare every message with what was written there, and whether it can be read with where its key is."""
        owners = dict(rows("SELECT id, owner_id FROM chatmemory_conversation"))
        origins = dict(rows("SELECT conversation_id, text FROM chatmemory_encryption_origin"))
        theirs = {key: (owner, wrapped) for key, owner, wrapped in rows(f"SELECT id, owner, wrapped FROM {KEYS}")}

        def has_key(value: str, conversation: int) -> bool:
            key = value.split(":")[1]
            if not key.startswith("@"):
                return key in self.there
            owner, wrapped = theirs.get(key, ("", ":lost"))
            return owner == str(owners[conversation]) and wrapped.split(":")[1] in self.there

        def can_be_read(value: str, conversation: int) -> bool:
            is_copied = value.split(":")[3] != str(conversation)
            own = [value, origins[conversation]] if is_copied else [value]
            return all(has_key(each, conversation) for each in own)

        there = {memory_id: pk for pk, memory_id in rows("SELECT id, memory_id FROM chatmemory_conversation")}
        assert set(there) == set(self.texts)
        for memory_id, conversation in there.items():
            stored = rows(
                "SELECT sequence, text FROM chatmemory_message "
                f"WHERE conversation_id = {conversation} ORDER BY sequence"
            )
            assert len(stored) == len(self.texts[memory_id])
            readable = [can_be_read(value, conversation) for _, value in stored]
            for (sequence, _), text, is_readable in zip(stored, self.texts[memory_id], readable, strict=True):
                self.outcomes[is_readable] += 1
                row = Message.objects.filter(conversation=conversation, sequence=sequence)
                if is_readable:
                    assert (str(owners[conversation]), text) not in self.destroyed
                    assert row.get().text == text
                else:
                    with pytest.raises(EncryptionError):
                        row.get()
            if all(readable):
                assert [each.single_text for each in get_chat_memory(memory_id).messages()] == self.texts[memory_id]
            else:
                with pytest.raises(EncryptionError):
                    get_chat_memory(memory_id).messages()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(16))
def test_a_walk_through_dumps_keys_and_erasures_reads_what_was_written_or_nothing(seed, settings):
    settings.CHATMEMORY = {}
    walk = Walk(seed, settings)
    for _ in range(STEPS):
        walk.step()
        walk.look()
    assert walk.outcomes[True]


@pytest.mark.parametrize("has_keys", [False, True])
def test_a_dump_brings_back_who_was_erased_if_it_has_their_key(has_keys, ann, settings):
    walk = Walk(0, settings)
    get_chat_memory("a", owner=ann).add(UserMessage("text"))
    walk.take(has_keys=has_keys)
    erase(Conversation.objects.all())

    walk.put(walk.dumps[0])
    walk.restart()

    if has_keys:
        assert get_chat_memory("a").messages() == [UserMessage("text")]
    else:
        with pytest.raises(MissingKeyError, match="'@"):
            get_chat_memory("a").messages()


def test_a_dump_from_before_a_key_was_replaced_needs_the_key_of_then(ann, settings):
    walk = Walk(0, settings)
    get_chat_memory("a", owner=ann).add(UserMessage("text"))
    for has_keys in (False, True):
        walk.take(has_keys=has_keys)
    for _ in range(2):
        call_command("encrypt_chatmemory", "--rekey-owners", stdout=io.StringIO(), verbosity=0)
        days_later()

    walk.put(walk.dumps[0])
    walk.restart()
    with pytest.raises(MissingKeyError, match="'@"):
        get_chat_memory("a").messages()
    walk.put(walk.dumps[1])
    walk.restart()

    assert get_chat_memory("a").messages() == [UserMessage("text")]


def test_a_half_replaced_key_of_the_site_is_needed_after_a_restore(settings):
    walk = Walk(0, settings)
    get_chat_memory("a").add(UserMessage("text"))
    walk.take(has_keys=True)
    walk.names.append("k1")
    walk.restart()
    call_command("encrypt_chatmemory", stdout=io.StringIO(), verbosity=0)
    walk.put(walk.dumps[0])
    walk.take_keys_out()
    walk.restart()

    with pytest.raises(MissingKeyError, match="'k0'"):
        get_chat_memory("a").messages()
    walk.put_keys_back()
    walk.restart()
    assert get_chat_memory("a").messages() == [UserMessage("text")]
