"""Trees of messages are stored as they are, in time that grows with the number of messages, however they branch."""

import random

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from chatmemory_django.messages import AiMessage, NewMessage, SystemMessage, UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.operations import ImportedConversation, ImportedMessage, ImportResult
from chatmemory_django.provider import get_chat_memory
from tests.database.contrib.importing.sources import imported

pytestmark = pytest.mark.django_db


def tree(parents: list[int], end: int | None = None, memory_id: str = "c") -> ImportedConversation:
    """Return a conversation in which each message follows the one at the position in *parents*, -1 for none."""
    kinds = (UserMessage, AiMessage)
    messages = [
        ImportedMessage(
            NewMessage(kinds[position % 2](f"message {position}"), client_message_id=f"m{position}"),
            follows=None if parent == position - 1 else parent,
        )
        for position, parent in enumerate(parents)
    ]
    return ImportedConversation(memory_id, messages, goes_on_from=end)


def path_to(parents: list[int], end: int) -> list[str]:
    path = []
    while end >= 0:
        path.append(f"message {end}")
        end = parents[end]
    return path[::-1]


def texts(conversation: Conversation) -> list[str]:
    return list(conversation.history().order_by("sequence").values_list("text", flat=True))


def assert_is(parents: list[int], end: int) -> None:
    """Assert that the conversation has the tree of *parents*, and that its path and its memory end at *end*."""
    conversation = Conversation.objects.get()
    rows = {row.text: row for row in conversation.history(all_branches=True)}
    assert list(rows) == [f"message {position}" for position in range(len(parents))]
    sequences = [row.sequence for row in rows.values()]
    found = []
    for row in rows.values():
        previous = row.sequence - 1 if row.parent_sequence is None else row.parent_sequence
        found.append(sequences.index(previous) if previous else -1)
    assert found == parents
    assert texts(conversation) == path_to(parents, end)
    assert [message_text(each) for each in get_chat_memory("c").messages()] == path_to(parents, end)[-20:]
    assert conversation.total_messages == len(parents)
    get_chat_memory("c").add(UserMessage("next"))
    assert texts(conversation) == [*path_to(parents, end), "next"]


def message_text(message) -> str:
    return message.text if isinstance(message, (AiMessage, SystemMessage)) else message.single_text


@pytest.fixture
def a_memory_of_20(settings) -> None:
    settings.CHATMEMORY = {
        "MEMORY": {"CLASS": "chatmemory_django.memory.MessageWindowChatMemory", "OPTIONS": {"max_messages": 20}}
    }


@pytest.mark.usefixtures("a_memory_of_20")
@pytest.mark.parametrize("seed", range(30))
def test_a_tree_is_stored_as_it_is(seed):
    choose = random.Random(seed)
    count = choose.randint(1, 30)
    parents = [-1] + [choose.choice([position - 1] * 3 + list(range(-1, position))) for position in range(1, count)]
    end = choose.choice([None, choose.randrange(count)])

    assert imported(tree(parents, end)) is ImportResult.STORED
    assert imported(tree(parents, end)) is ImportResult.PRESENT

    assert_is(parents, count - 1 if end is None else end)


@pytest.mark.usefixtures("a_memory_of_20")
@pytest.mark.parametrize("seed", range(30))
def test_what_was_stored_in_part_goes_on_from_there(seed):
    choose = random.Random(seed)
    count = choose.randint(2, 20)
    parents = [-1] + [choose.choice([position - 1] * 2 + list(range(-1, position))) for position in range(1, count)]
    first = choose.randrange(1, count)
    end = choose.randrange(count)
    imported(tree(parents[:first], choose.randrange(first)))

    assert imported(tree(parents, end)) is ImportResult.CONTINUED

    assert_is(parents, end)


def test_a_version_that_was_removed_is_not_stored_again():
    parents = [-1, 0, 0, 2, 3]
    imported(tree(parents[:4], 1))
    get_chat_memory("c").remove(4)

    assert imported(tree(parents, 1)) is ImportResult.CONTINUED

    conversation = Conversation.objects.get()
    rows = conversation.history(all_branches=True).order_by("sequence")
    assert list(rows.values_list("text", "parent_sequence")) == [
        ("message 0", None),
        ("message 1", None),
        ("message 2", 1),
        ("message 4", 4),
    ]
    assert texts(conversation) == path_to(parents, 1)


TREES = {
    "versions of one message": lambda count: [-1, *[0] * count],
    "first messages": lambda count: [-1] * count,
    "versions of each message": lambda count: [-1] + [2 * (position // 2) - 1 for position in range(1, count)],
}


@pytest.mark.parametrize("shape", TREES)
def test_no_branch_moves_the_path_and_versions_of_a_message_are_one_write(shape):
    made = []
    for count in (40, 80, 160):
        with CaptureQueriesContext(connection) as found:
            imported(tree(TREES[shape](count), memory_id=f"c{count}"))
        made.append([each["sql"].replace('"', "").replace("`", "") for each in found])

    numbers = [len(each) for each in made]
    assert numbers[2] - numbers[1] <= 2 * (numbers[1] - numbers[0]) + 4  # as many for each branch
    for statements in made:
        assert not [each for each in statements if each.startswith("UPDATE") and "on_path" in each]
        assert not [each for each in statements if "parent_sequence IS NOT NULL" in each]
        writes = [each for each in statements if "UPDATE chatmemory_conversation" in each]
        if shape != "versions of each message":
            # PostgreSQL walks all versions of a row that one transaction has made.
            assert len(writes) <= 6
