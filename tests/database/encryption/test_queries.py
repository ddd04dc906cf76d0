"""Whatever a site has a QuerySet or a row write or compute: no text is stored in plain, or becomes unreadable."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.exceptions import FieldError
from django.core.management import call_command
from django.db import connection, transaction
from django.db.models import Case, CharField, Count, F, Max, Subquery, TextField, Value, When
from django.db.models.functions import Cast, Coalesce, Concat, Left, Length, Lower, Replace, Substr, Upper

from chatmemory_django.chat.approvals.tables import ToolApproval
from chatmemory_django.contrib.encryption.ciphers import install
from chatmemory_django.db.row_codec import EncryptedError
from chatmemory_django.messages import AiMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.models.messages import TEXTS
from chatmemory_django.operations import export_ratings, fork, rate
from chatmemory_django.provider import get_chat_memory
from tests.leftovers import leftovers

pytestmark = pytest.mark.django_db(transaction=True)

SECRET = "Zwiebelkuchen"
TITLE_FIELD: Any = Conversation._meta.get_field("title")


@pytest.fixture(params=[False, True], ids=["site", "owners"], autouse=True)
def has_owner_keys(request, settings) -> bool:
    keys = [f"k1:{base64.b64encode(b'k1'.ljust(32)).decode()}"]
    settings.CHATMEMORY = {"REST": {"THROTTLE_RATES": {}}, "ENCRYPTION": {"KEYS": keys, "OWNER_KEYS": request.param}}
    install()
    return request.param


@pytest.fixture
def conversation(has_owner_keys, ann) -> Conversation:
    get_chat_memory("a", owner=ann).add(UserMessage("asked"))
    conversation = Conversation.objects.get()
    conversation.title = "title"
    conversation.save()
    return conversation


def read() -> tuple[str, str]:
    there = Conversation.objects.get()
    return there.title, there.messages.get().text


def as_stored() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT title FROM chatmemory_conversation")
        return str(cursor.fetchone()[0])


EXPRESSIONS: dict[str, Any] = {
    "a value": Value(SECRET),
    "a value of another field": Value(SECRET, output_field=TextField()),
    "a value of the field": Value(SECRET, output_field=TITLE_FIELD),
    "a function": Upper(Value(SECRET)),
    "a cast": Cast(Value(SECRET), TextField()),
    "a concatenation": Concat(Value(SECRET), Value("!")),
}
OF_COLUMNS: dict[str, Any] = {
    "a choice": Case(When(pk=0, then=Value("")), default=Value(SECRET)),
    "another column": F("memory_id"),
    "a concatenation with it": Concat("memory_id", Value(SECRET)),
    "a choice of it": Case(When(pk__gt=0, then=F("memory_id")), default=Value("")),
    "a subquery": Subquery(Conversation.objects.values("memory_id")[:1]),
}


@pytest.mark.parametrize("how", EXPRESSIONS)
def test_an_expression_is_never_inserted(ann, how):
    def new(**values: Any) -> Conversation:
        return Conversation(memory_id="b", owner=ann, **values)

    ways: dict[str, Callable[[], object]] = {
        "create": lambda: Conversation.objects.create(memory_id="b", owner=ann, title=EXPRESSIONS[how]),
        "save": lambda: new(title=EXPRESSIONS[how]).save(),
        "bulk_create": lambda: Conversation.objects.bulk_create([new(title=EXPRESSIONS[how])]),
    }
    for name, way in ways.items():
        with transaction.atomic(), pytest.raises(EncryptedError, match=r"chatmemory\.conversation\.title"):
            raise AssertionError(f"{name}: {way()}")
    assert leftovers(SECRET) == []


@pytest.mark.parametrize("how", [*EXPRESSIONS, *OF_COLUMNS])
def test_an_expression_is_never_written(conversation, ann, how):
    expression = {**EXPRESSIONS, **OF_COLUMNS}[how]
    own = Conversation.objects.filter(pk=conversation.pk)
    stale = Conversation.objects.get()
    stale.title = expression
    approval = ToolApproval.objects.create(conversation=conversation, sequence=1, position=0, reason="why")
    approval.reason = expression if how in EXPRESSIONS else F("approve_by")
    ways: dict[str, Callable[[], object]] = {
        "update": lambda: own.update(title=expression),
        "base manager": lambda: Conversation._base_manager.filter(pk=conversation.pk).update(title=expression),
        "save": stale.save,
        "save of the field": lambda: stale.save(update_fields=["title"]),
        "bulk_update": lambda: Conversation.objects.bulk_update([stale], ["title"]),
        "another table": lambda: ToolApproval.objects.update(reason=approval.reason),
        "row of another table": approval.save,
    }
    for name, way in ways.items():
        with pytest.raises(EncryptedError):
            raise AssertionError(f"{name}: {way()}")
    assert leftovers(SECRET) == []
    assert read() == ("title", "asked")
    assert ToolApproval.objects.get().reason == "why"


def test_the_reason_of_a_rating_is_encrypted_for_its_message(conversation, ann):
    get_chat_memory("a", owner=ann).add(AiMessage("answered"))
    rate(conversation, 2, 1, SECRET)
    fork(conversation)
    call_command("encrypt_chatmemory")

    assert leftovers(SECRET) == []
    assert [*Message.objects.exclude(rating_reason=None).values_list("rating_reason", flat=True)] == [SECRET] * 2
    assert [json.loads(line)["reason"] for line in export_ratings(Conversation.objects.all())] == [SECRET] * 2


@pytest.mark.parametrize("fields", [None, ["type", *TEXTS]])
def test_texts_of_a_message_are_written_with_its_type(conversation, fields):
    row = Message.objects.get()
    row.type = "SYSTEM"
    row.save(update_fields=fields)
    assert read() == ("title", "asked")
    assert Message.objects.get().type == "SYSTEM"


@pytest.mark.parametrize("fields", [["type"], ["type", "text"], ["type", *TEXTS], None])
def test_a_type_is_not_saved_without_the_texts(conversation, fields):
    row = Message.objects.defer("verbatim" if fields is None or len(fields) > 2 else "metadata").get()
    row.type = "SYSTEM"
    with pytest.raises(EncryptedError, match="Texts are encrypted for their type"):
        row.save(update_fields=fields)
    row.metadata = {"a": 1}
    row.save(update_fields=["metadata"])
    assert read() == ("title", "asked")


def test_bulk_update_writes_titles_for_where_their_conversations_are_now(conversation, ann):
    stale, eve = Conversation.objects.get(), get_user_model().objects.create_user("eve")
    conversation.memory_id, conversation.owner = "b", eve
    conversation.save()
    stale.title = "later"
    assert Conversation.objects.bulk_update([stale], ["title"]) == 1
    assert read() == ("later", "asked")
    stale.memory_id = "c"  # which is not written
    assert Conversation.objects.bulk_update([stale], ["title"]) == 1
    assert read() == ("later", "asked")


def test_bulk_update_writes_texts_for_their_type(conversation):
    row = Message.objects.get()
    row.type, row.text = "SYSTEM", "asked again"
    assert Message.objects.bulk_update([row], ["text"]) == 1
    assert read() == ("title", "asked again")


def test_bulk_update_of_rows_that_are_gone_writes_nothing(conversation):
    gone = Conversation.objects.get()
    conversation.delete()
    gone.title = "later"
    assert Conversation.objects.bulk_update([gone], ["title"]) == 0


COMPUTED: dict[str, Any] = {
    "Lower": Lower("title"),
    "Concat": Concat("title", Value("!")),
    "Coalesce": Coalesce("title", Value("")),
    "Replace": Replace("title", Value("t"), Value("T")),
    "CASE": Case(When(pk__gt=0, then="title")),
    "Max": Max("title"),
}
OF_ANOTHER_TYPE: dict[str, Any] = {
    "Left": Left("title", 3),
    "Substr": Substr("title", 1, 3),
    "output_field": Concat("title", Value("!"), output_field=CharField()),
    "Length": Length("title"),
    "Cast": Cast("title", CharField()),
    "Count": Count("title", distinct=True),
}


@pytest.mark.parametrize("how", COMPUTED)
def test_a_text_that_the_database_has_computed_is_not_read(conversation, how):
    own = Conversation.objects.annotate(computed=COMPUTED[how])
    with pytest.raises(FieldError):  # Django's own where it cannot mix the types of fields
        own.values_list("computed", flat=True)[0]
    with pytest.raises(FieldError):
        own.filter(computed="title").count()


@pytest.mark.parametrize("how", OF_ANOTHER_TYPE)
def test_of_what_has_another_type_the_database_computes_with_what_is_stored(conversation, how):
    found = str(Conversation.objects.annotate(computed=OF_ANOTHER_TYPE[how]).values_list("computed", flat=True)[0])
    assert found.startswith("enc") or int(found) in {1, len(as_stored())}
    assert f"`{how}`" in Path("docs/encryption.md").read_text(encoding="utf-8")
