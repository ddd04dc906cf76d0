"""A legal hold forbids each way of erasing, on a conversation or on all of an owner, until it ends."""

import datetime
from collections.abc import Callable
from typing import ClassVar

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import connection, transaction
from django.db.models import ProtectedError
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from chatmemory_django import operations
from chatmemory_django.contrib.holds.models import LegalHold
from chatmemory_django.memory import MessageWindowChatMemory
from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.stores.django import DjangoChatMemoryStore

pytestmark = pytest.mark.django_db

LONG_AGO = timezone.now() - datetime.timedelta(days=1000)
YEAR = datetime.timedelta(days=365)
TEXTS = [f"text {number}" for number in range(5)]


def memory(memory_id: str = "held", *, keep_history: bool = True) -> MessageWindowChatMemory:
    store = DjangoChatMemoryStore(keep_history=keep_history)
    return MessageWindowChatMemory(max_messages=2, id=memory_id, store=store)


def stored(memory_id: str = "held") -> list[str | None]:
    return list(Message.objects.filter(conversation__memory_id=memory_id).values_list("text", flat=True))


def held_one() -> Conversation:
    return Conversation.objects.get(memory_id="held")


@pytest.fixture
def ann():
    return User.objects.create_user("ann")


@pytest.fixture
def talk(ann):
    """An old, temporary conversation of ann with a history, of which everything could go."""
    memory().add(*map(UserMessage, TEXTS))
    Message.objects.update(created_at=LONG_AGO)
    Conversation.objects.update(owner=ann, updated_at=LONG_AGO)
    return held_one()


@pytest.fixture
def kept_temporarily(talk):
    Conversation.objects.update(expires_at=LONG_AGO)


def of_conversation() -> LegalHold:
    return LegalHold.objects.create(conversation=held_one(), reason="Case 7", placed_by="eva")


def of_owner() -> LegalHold:
    return LegalHold.objects.create(owner=User.objects.get(), reason="Case 7", placed_by="eva")


HOLDS = {"its conversation": of_conversation, "its owner": of_owner}

WAYS: dict[str, Callable[[], object]] = {
    "deleting the user": lambda: User.objects.get(username="ann").delete(),
    "deleting users": lambda: User.objects.all().delete(),
    "deleting the conversation": lambda: held_one().delete(),
    "deleting conversations": lambda: Conversation.objects.all().delete(),
    "erasing": lambda: operations.erase(Conversation.objects.all()),
    "removing a message": lambda: memory().remove(1),
    "clearing the memory": lambda: memory().clear(),
    "clearing memories": lambda: operations.clear(Conversation.objects.all()),
    "pruning the history": lambda: operations.prune(Conversation.objects.all(), history_older_than=YEAR),
    "pruning what is idle": lambda: operations.prune(Conversation.objects.all(), idle=YEAR),
}


@pytest.mark.parametrize("hold", HOLDS)
@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_erased_by_any_way_until_the_hold_ends(talk, way, hold):
    placed, seen = HOLDS[hold](), memory().messages()

    with pytest.raises(ProtectedError), transaction.atomic():
        WAYS[way]()

    assert stored() == TEXTS
    assert memory().messages() == seen

    placed.end(User.objects.create_user("eva"))
    WAYS[way]()

    assert stored() != TEXTS or memory().messages() != seen


@pytest.mark.parametrize("hold", HOLDS)
def test_a_temporary_conversation_outlives_its_time(kept_temporarily, hold, settings):
    settings.CHATMEMORY = {"RETENTION": {"HISTORY_OLDER_THAN": 180, "IDLE": 365}}
    placed, refused = HOLDS[hold](), []

    pruned = operations.apply_retention(
        Conversation.objects.all(), refused=lambda conversation, error: refused.append(conversation.memory_id)
    )

    assert (pruned.conversations, set(refused), stored()) == (0, {"held"}, TEXTS)

    placed.end(User.objects.create_user("eva"))
    assert operations.apply_retention(Conversation.objects.all()).conversations == 1


@pytest.mark.parametrize("hold", HOLDS)
def test_what_leaves_a_memory_without_a_history_stays_in_the_history(talk, hold):
    HOLDS[hold]()

    memory(keep_history=False).add(UserMessage("new"), UserMessage("newer"), UserMessage("newest"))
    memory(keep_history=False).set([UserMessage("other")])

    assert stored() == [*TEXTS, "new", "newer", "newest", "other"]
    assert [each.text for each in Conversation.objects.get().memory()] == ["other"]


@pytest.mark.parametrize("hold", HOLDS)
def test_a_hold_refuses_no_pin_and_keeps_what_is_deleted_when_a_pin_ends_without_a_history(talk, hold):
    HOLDS[hold]()

    assert memory(keep_history=False).pin(1) == [1]
    memory(keep_history=False).add(UserMessage("new"), UserMessage("newer"))
    assert [each.single_text for each in memory().messages()] == [TEXTS[0], "newer"]
    assert memory(keep_history=False).unpin(1) == [1]
    assert stored() == [*TEXTS, "new", "newer"]
    with pytest.raises(ProtectedError):
        memory().remove(1)


def test_without_a_hold_it_is_deleted_as_before(talk):
    memory(keep_history=False).add(UserMessage("new"), UserMessage("newer"), UserMessage("newest"))

    assert "newer" in stored()
    assert "new" not in stored()


def test_others_are_erased_beside_it(talk):
    of_conversation()
    memory("other").add(UserMessage("free"))
    refused = []

    receipt = operations.erase(
        Conversation.objects.all(), refused=lambda conversation, error: refused.append(conversation.memory_id)
    )

    assert (list(receipt.messages), refused) == (["other"], ["held"])
    assert stored("other") == []


def test_a_hold_on_an_owner_is_on_later_conversations_too(talk, ann):
    of_owner()
    memory("later").add(UserMessage("kept"))
    Conversation.objects.filter(memory_id="later").update(owner=ann)

    with pytest.raises(ProtectedError), transaction.atomic():
        memory("later").clear()


def test_a_hold_ends_at_its_time_and_goes_with_what_it_was_on(talk):
    hold = of_conversation()
    LegalHold.objects.update(until=timezone.now())
    hold.refresh_from_db()

    assert not hold.is_active
    operations.erase(Conversation.objects.all())
    assert not LegalHold.objects.exists()


def test_who_ends_a_hold_is_noted_once(talk):
    hold = of_conversation()
    hold.end(User.objects.create_user("eva"))
    first = hold.until

    hold.end(User.objects.create_user("tom"))

    hold.refresh_from_db()
    assert (hold.ended_by, hold.until) == ("eva", first)


def test_a_hold_is_on_one_thing(talk, ann):
    for things in ({}, {"conversation": talk, "owner": ann}):
        with pytest.raises(ValidationError, match="on a conversation or on an owner"):
            LegalHold(reason="Case 7", **things).full_clean(exclude=["placed_by"])


def test_an_add_asks_for_no_hold(talk):
    of_owner()
    with CaptureQueriesContext(connection) as queries:
        memory().add(UserMessage("new"))

    assert not [each for each in queries if "legalhold" in each["sql"]]


class ByOwner:
    """Note whose database is asked for, as a router of shards is."""

    asked: ClassVar[list[object]] = []

    def db_for_write(self, model: type, *, owner_key: object = None, **hints: object) -> str:
        self.asked.append(owner_key)
        return "default"


def test_a_hold_on_an_owner_comes_to_the_database_of_the_owner(ann, settings):
    settings.DATABASE_ROUTERS = [ByOwner()]
    hold = LegalHold(owner_id=ann.pk, reason="Case 7", placed_by="eva")
    ByOwner.asked.clear()

    hold.save()
    hold.end(ann)

    assert ByOwner.asked[0] == str(ann.pk)


def test_a_dry_run_names_what_is_held(talk):
    of_conversation()
    refused: list[str] = []

    receipt = operations.erase(
        Conversation.objects.all(), dry_run=True, refused=lambda each, error: refused.append(each.memory_id)
    )

    assert (receipt.messages, refused) == ({}, ["held"])
