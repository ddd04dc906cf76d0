"""``operations.import_conversations``: each once, completely or not at all, as it was; errors name it, without text."""

import datetime
import gc
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from chatmemory_django.messages import AiMessage, NewMessage, SystemMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.operations import (
    ImportConflictError,
    ImportedConversation,
    ImportedMessage,
    ImportRefusedError,
    ImportResult,
    clear,
    erase,
    import_conversations,
)
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.signals import messages_added
from tests.database.test_operations import everything_is_whole
from tests.strategies import IN_DATABASE

pytestmark = pytest.mark.django_db(transaction=True)

BEGUN = datetime.datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=datetime.UTC)
MINUTE = datetime.timedelta(minutes=1)


@pytest.fixture
def anna():
    return get_user_model().objects.create_user("anna")


@pytest.fixture
def ben():
    return get_user_model().objects.create_user("ben")


def talk(count: int, memory_id: str = "c", *, ids: bool = True, **fields: object) -> ImportedConversation:
    messages = []
    for number in range(count):
        message = (UserMessage, AiMessage)[number % 2](f"{memory_id} {number}")
        new = NewMessage(message, client_message_id=f"m{number}") if ids else message
        messages.append(ImportedMessage(new, BEGUN + number * MINUTE))
    return ImportedConversation(memory_id, messages, **fields)


def texts(memory_id: str = "c") -> list[str]:
    return [row.text for row in Conversation.objects.get(memory_id=memory_id).history()]


def test_everything_of_it_is_kept(anna):
    fields = {"title": "Zeit 🕛", "metadata": {"old": [1]}, "assistant": "sales", "is_archived": True}
    updated_at = BEGUN + 60 * MINUTE

    assert import_conversations([talk(3, owner=anna, created_at=BEGUN - MINUTE, updated_at=updated_at, **fields)]) == 1

    found = Conversation.objects.get()
    assert {name: getattr(found, name) for name in fields} == fields
    assert (found.owner, found.created_at, found.updated_at) == (anna, BEGUN - MINUTE, updated_at)
    rows = found.history().values_list("text", "client_message_id", "created_at")
    assert list(rows) == [(f"c {number}", f"m{number}", BEGUN + number * MINUTE) for number in range(3)]
    everything_is_whole()


def test_plain_messages_are_enough():
    assert import_conversations([ImportedConversation(17, iter([UserMessage("Hi"), NewMessage(AiMessage("Hello"))]))])

    assert texts("17") == ["Hi", "Hello"]


def test_moments_that_are_not_known_are_those_around_them():
    known = ImportedMessage(AiMessage("b"), BEGUN)
    import_conversations([ImportedConversation("c", [UserMessage("a"), known, UserMessage("c")])])

    found = Conversation.objects.get()
    first, *others = [row.created_at for row in found.history()]
    assert others == [BEGUN, BEGUN]
    assert first > BEGUN  # of the import: nothing before it is known
    assert (found.created_at, found.updated_at) == (BEGUN, BEGUN)


def test_a_moment_without_a_time_zone_is_in_that_of_the_site(settings):
    settings.TIME_ZONE = "Asia/Kathmandu"
    import_conversations([ImportedConversation("c", [ImportedMessage(UserMessage("a"), BEGUN.replace(tzinfo=None))])])

    assert Message.objects.get().created_at == BEGUN - datetime.timedelta(hours=5, minutes=45)


def test_the_memory_has_what_fits(settings):
    settings.CHATMEMORY = {
        "KEEP_HISTORY": False,
        "MEMORY": {"CLASS": "chatmemory_django.memory.MessageWindowChatMemory", "OPTIONS": {"max_messages": 3}},
    }
    import_conversations([talk(10)])

    assert len(texts()) == 10
    assert [row.text for row in Conversation.objects.get().memory()] == ["c 7", "c 8", "c 9"]
    assert len(get_chat_memory("c").messages()) == 3


def test_again_adds_only_what_is_new():
    results = []

    def note(conversation: ImportedConversation, result: ImportResult) -> None:
        results.append((conversation.memory_id, result))

    assert import_conversations([talk(2), talk(2, "d")], each=note) == 2
    before = Conversation.objects.get(memory_id="c").version
    assert import_conversations([talk(2), talk(3, "d", title="other"), talk(0, "e")], each=note) == 1

    assert results == [
        *[("c", ImportResult.STORED), ("d", ImportResult.STORED)],
        *[("c", ImportResult.PRESENT), ("d", ImportResult.CONTINUED), ("e", ImportResult.PRESENT)],
    ]
    assert (len(texts("c")), len(texts("d"))) == (2, 3)
    assert Conversation.objects.get(memory_id="d").title == ""
    assert Conversation.objects.get(memory_id="c").version == before
    assert Message.objects.order_by("created_at").last().created_at == BEGUN + 2 * MINUTE


def test_what_the_site_has_added_stays():
    import_conversations([talk(2)])
    get_chat_memory("c").add(UserMessage("new"))

    assert import_conversations([talk(2)]) == 0

    with pytest.raises(ImportConflictError, match=r"^'c': Its message 3 differs from the stored one\.$"):
        import_conversations([talk(3)])
    assert texts() == ["c 0", "c 1", "new"]


def test_the_conversation_of_a_user_who_is_deleted_meanwhile_is_refused_and_the_others_go_on(anna, ben):
    conversations = [talk(2, "a", owner=anna), talk(2, "b", owner=ben)]
    get_user_model().objects.filter(pk=anna.pk).delete()
    refused = []

    assert import_conversations(conversations, refused=lambda _, error: refused.append(str(error))) == 1

    assert refused == ["'a': Its owner does not exist any more."]
    assert texts("b") == ["b 0", "b 1"]


def test_nobody_gets_messages_into_the_conversation_of_another(anna, ben):
    import_conversations([talk(2, owner=anna)])

    with pytest.raises(ImportConflictError, match=r"^'c': It belongs to another user\.$"):
        import_conversations([talk(3, owner=ben)])
    assert import_conversations([talk(3)]) == 1

    assert Conversation.objects.get().owner == anna


def test_the_conversation_of_nobody_stays_so(anna):
    import_conversations([talk(2)])

    with pytest.raises(ImportConflictError, match=r"^'c': It belongs to nobody\.$"):
        import_conversations([talk(3, owner=anna)])

    assert (Conversation.objects.get().owner, texts()) == (None, ["c 0", "c 1"])


@pytest.mark.parametrize("ids", [True, False])
def test_a_message_that_was_removed_does_not_come_back(ids: bool):
    import_conversations([talk(2, ids=ids)])
    get_chat_memory("c").remove(2)

    if ids:
        import_conversations([talk(2)])
    else:
        with pytest.raises(ImportConflictError, match="A message was removed where its message 2 would be"):
            import_conversations([talk(2, ids=False)])

    assert texts() == ["c 0"]
    assert not Message.objects.filter(text="c 1").exists()


def test_an_answer_does_not_come_back_behind_a_question_with_an_id():
    question = NewMessage(UserMessage("Who?"), client_message_id="m0")
    imported = ImportedConversation("c", [question, AiMessage("Anna")])
    import_conversations([imported])
    get_chat_memory("c").remove(1, 2)

    with pytest.raises(ImportConflictError, match="A message was removed where its message 2 would be"):
        import_conversations([imported])

    assert texts() == []


@pytest.mark.parametrize("removed", [1, 2])
def test_a_conversation_goes_on_behind_a_message_that_was_removed(removed: int):
    import_conversations([talk(2)])
    get_chat_memory("c").remove(removed)

    assert [import_conversations([talk(count)]) for count in (2, 3, 3)] == [0, 1, 0]

    assert texts() == [f"c {number}" for number in range(3) if number != removed - 1]
    assert everything_is_whole() == {"c": 3}  # with what is left of the removed one


def test_it_goes_on_from_before_a_message_that_was_removed():
    import_conversations([talk(2)])
    get_chat_memory("c").remove(2)

    import_conversations([talk(4, goes_on_from=1)])

    assert texts() == ["c 0"]
    assert [row.text for row in Conversation.objects.get().history(all_branches=True)] == ["c 0", "c 2", "c 3"]


def test_a_message_with_the_id_of_another_one_is_refused():
    """The store would take it for that one, and leave it out."""
    get_chat_memory("c").add(NewMessage(UserMessage("c 0"), client_message_id="m2"))

    with pytest.raises(ImportConflictError, match="Its message 3 has the client_message_id of the stored message 1"):
        import_conversations([talk(3)])

    assert texts() == ["c 0"]


@pytest.mark.parametrize("ids", [True, False])
def test_a_memory_that_was_cleared_stays_so(ids: bool):
    import_conversations([talk(2, ids=ids)])
    clear(Conversation.objects.all())

    assert import_conversations([talk(2, ids=ids)]) == 0
    assert get_chat_memory("c").messages() == []


def test_an_error_ends_it_and_what_came_before_stays():
    wrong = ImportedConversation("d", [UserMessage("a"), "secret"])

    with pytest.raises(ImportRefusedError) as caught:
        import_conversations([talk(2), wrong, talk(2, "e")])

    assert (caught.value.memory_id, caught.value.reason) == ("d", "messages[1] must be a message, not str.")
    assert everything_is_whole() == {"c": 2}


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([UserMessage("a"), "secret"], "messages[1] must be a message, not str."),
        (None, "messages must be an iterable, not NoneType."),
    ],
)
def test_with_refused_it_goes_on(messages: object, reason: str):
    refusals = []
    wrong = ImportedConversation("d", messages)

    count = import_conversations([wrong, talk(2)], refused=lambda each, error: refusals.append((each, str(error))))

    assert (count, refusals) == (1, [(wrong, f"'d': {reason}")])
    assert everything_is_whole() == {"c": 2}


SECRET = NewMessage(UserMessage("secret"), client_message_id="secret")
REFUSED = {
    "messages[1] has the client_message_id of messages[0].": {"messages": [SECRET, SECRET]},
    "messages[0]: client_message_id must have 1 to 64": {
        "messages": [NewMessage(UserMessage("secret"), client_message_id="secret" * 20)]
    },
    "messages[0]: metadata must be a mapping": {"messages": [NewMessage(UserMessage("a"), metadata="secret")]},
    "messages[0]: UserMessage": {"messages": [UserMessage("secret\0")]},
    "messages[0].created_at must be a datetime or None": {"messages": [ImportedMessage(UserMessage("a"), "secret")]},
    "messages[0].created_at: 1890-01-01T00:00:00+00:00 must be between": {
        "messages": [ImportedMessage(UserMessage("a"), datetime.datetime(1890, 1, 1, tzinfo=datetime.UTC))]
    },
    "messages[0].follows is 0, but must be from -1 to -1.": {"messages": [ImportedMessage(UserMessage("a"), None, 0)]},
    "messages[0].follows must be an int": {"messages": [ImportedMessage(UserMessage("a"), None, "secret")]},
    "goes_on_from is 1, but must be from 0 to 0.": {"goes_on_from": 1},
    "title has 300 characters; at most 255": {"title": "secret" * 50},
    "title holds a NUL": {"title": "secret\0"},
    "title must be a str": {"title": None},
    "assistant must have up to 64": {"assistant": "secret assistant"},
    "metadata must be a mapping": {"metadata": "secret"},
    "created_at must be a datetime": {"created_at": 0},
    "updated_at: 9999-12-31T00:00:00+00:00 must be": {
        "updated_at": datetime.datetime(9999, 12, 31, tzinfo=datetime.UTC)
    },
    "owner must be a user": {"owner": "secret"},
    "owner must be a saved user": {"owner": AnonymousUser()},
    "A memory id must not be None": {"memory_id": None},
}


@pytest.mark.parametrize("reason", REFUSED)
def test_an_error_names_the_conversation_and_the_field_and_never_repeats_text(reason: str):
    values = {"memory_id": "c", "messages": [UserMessage("a")], **REFUSED[reason]}

    with pytest.raises(ImportRefusedError) as caught:
        import_conversations([ImportedConversation(**values)])

    assert str(caught.value).startswith(f"'{values['memory_id']}': {reason}")
    assert "secret" not in str(caught.value)
    assert not Conversation.objects.exists()


def test_another_value_is_named_by_its_position():
    with pytest.raises(TypeError, match=r"^conversations\[1\] must be an ImportedConversation, not dict\.$"):
        import_conversations([talk(1), {}])


def test_errors_of_the_callers_own_iterables_are_the_callers():
    def messages():
        yield UserMessage("a")
        raise ValueError("mine")

    with pytest.raises(ValueError, match=r"^mine$"):
        import_conversations([ImportedConversation("c", messages())], refused=lambda *refused: None)
    assert not Conversation.objects.exists()


def anything():
    moments = st.none() | st.datetimes() | st.datetimes(timezones=st.timezones()) | st.text(max_size=3)
    message = st.builds(UserMessage, st.text()) | st.builds(AiMessage, st.text()) | st.text() | st.none()
    new = st.builds(NewMessage, message, st.none() | st.dictionaries(st.text(), st.floats()), st.none() | st.text())
    each = message | new | st.builds(ImportedMessage, message | new, moments, st.none() | st.integers(-2, 3))
    return st.builds(
        ImportedConversation,
        st.text(max_size=300) | st.integers(),
        st.lists(each, max_size=4),
        title=st.text(max_size=300) | st.none(),
        metadata=st.none() | st.dictionaries(st.text(), st.integers() | st.text()),
        assistant=st.sampled_from(["", "sales", "no name"]),
        created_at=moments,
        updated_at=moments,
        goes_on_from=st.none() | st.integers(-1, 4),
    )


@IN_DATABASE
@given(conversation=anything())
def test_anything_is_stored_whole_or_refused_and_again_changes_nothing(conversation: ImportedConversation):
    Conversation.objects.all().delete()
    try:
        count = import_conversations([conversation])
    except ImportRefusedError:
        assert not Conversation.objects.exists()
        return

    whole = everything_is_whole()
    assert import_conversations([conversation]) == 0
    assert count == len(whole) == bool(conversation.messages)
    assert everything_is_whole() == whole
    assert sum(whole.values()) == len(conversation.messages)


def test_statements_grow_with_batches_of_messages_and_not_with_messages(anna):
    counts = []
    for number, size in enumerate((100, 200, 1_000)):
        conversation = talk(size, f"c{number}", owner=anna, title="t")
        with CaptureQueriesContext(connection) as found:
            import_conversations([conversation])
        counts.append(len(found))
        with CaptureQueriesContext(connection) as found:
            import_conversations([conversation])
        counts.append(len(found))

    assert counts[0] <= 16
    assert counts[2] - counts[0] <= 2
    assert counts[4] - counts[2] <= 22  # 800 messages more: 17 INSERTs, and 4 for their times
    assert counts[1] == counts[3] == counts[5] <= 6


def test_one_conversation_at_a_time_is_asked_for():
    alive = []

    def conversations():
        for number in range(4):
            yield talk(1, f"c{number}")
            alive.append(Conversation.objects.count())

    import_conversations(conversations())
    gc.collect()

    assert alive == [1, 2, 3, 4]


def test_in_a_transaction_of_the_caller_it_is_as_that_is():
    with pytest.raises(RuntimeError), transaction.atomic():
        import_conversations([talk(2)])
        with pytest.raises(ImportRefusedError):
            import_conversations([talk(2, "d", title=None)])
        assert texts() == ["c 0", "c 1"]
        raise RuntimeError

    assert not Conversation.objects.exists()


def test_signals_are_those_of_any_other_write():
    heard = []

    def hear(sender, conversation, sequences, **kwargs):
        heard.append((conversation.memory_id, list(sequences)))

    messages_added.connect(hear)
    try:
        import_conversations([talk(2)])
    finally:
        messages_added.disconnect(hear)

    assert heard == [("c", [1, 2])]


def test_two_imports_at_once_store_each_message_once():
    conversations = [talk(5, f"c{number}") for number in range(8)]

    def run(order: int) -> int:
        try:
            return import_conversations(conversations[::order])
        finally:
            connections.close_all()

    with ThreadPoolExecutor(2) as pool:
        counts = list(pool.map(run, (1, -1)))

    assert sum(counts) == 8
    assert everything_is_whole() == {f"c{number}": 5 for number in range(8)}


def test_one_that_was_erased_is_stored_again_if_it_is_imported_again():
    import_conversations([talk(2, owner=None)])
    erase(Conversation.objects.all())

    assert import_conversations([talk(2)]) == 1


def test_branches_are_kept():
    messages = [
        UserMessage("question"),
        AiMessage("first"),
        ImportedMessage(AiMessage("second"), follows=0),
        SystemMessage("Be brief."),
    ]
    import_conversations([ImportedConversation("c", messages, goes_on_from=1)])

    assert texts() == ["question", "first"]
    assert [each.text for each in Conversation.objects.get().alternatives(2)] == ["second"]
