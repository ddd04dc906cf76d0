"""Positions of messages among their alternatives: "2 of 3", for a whole page at once."""

import random

import pytest

from chatmemory_django.memory import ChatMemory, MessageWindowChatMemory
from chatmemory_django.messages import AiMessage, MessageType, SystemMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.models.alternatives import NEAR, Place
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.quick import mostly_slow

pytestmark = pytest.mark.django_db

SPOKEN = {MessageType.USER, MessageType.AI}


def a_memory(memory_id: str = "a") -> ChatMemory:
    return MessageWindowChatMemory(max_messages=5, id=memory_id, store=DjangoChatMemoryStore())


def conversation(memory_id: str = "a") -> Conversation:
    return Conversation.objects.get(memory_id=memory_id)


def places(*, types=None, memory_id: str = "a") -> dict[int, Place]:
    found = conversation(memory_id)
    return found.places(found.history(all_branches=True), types=types)


def answered_three_times() -> ChatMemory:
    memory = a_memory()
    memory.add(UserMessage("hello"), AiMessage("hi"))
    for text in ("good day", "hey"):
        memory.rewind(1)
        memory.add(AiMessage(text))
    return memory


def test_a_conversation_without_branches_has_no_positions():
    a_memory().add(UserMessage("hello"), AiMessage("hi"))
    assert places() == {}


def test_each_answer_has_a_position_among_the_answers_and_neighbours():
    answered_three_times()
    assert places() == {2: Place(1, 3, None, 3), 3: Place(2, 3, 2, 4), 4: Place(3, 3, 3, None)}


def test_positions_on_a_page_are_among_all_alternatives():
    answered_three_times()
    page = list(conversation().messages.filter(sequence=3))
    assert conversation().places(page) == {3: Place(2, 3, 2, 4)}


def test_the_first_message_has_alternatives():
    memory = a_memory()
    memory.add(UserMessage("hello"))
    memory.rewind(0)
    memory.add(UserMessage("good day"))
    assert places() == {1: Place(1, 2, None, 2), 2: Place(2, 2, 1, None)}


def test_alternatives_of_excluded_types_are_not_counted():
    memory = a_memory()
    memory.add(UserMessage("hello"), AiMessage("hi"))
    for message in (SystemMessage("be brief"), AiMessage("hey")):
        memory.rewind(1)
        memory.add(message)
    assert places(types=SPOKEN) == {2: Place(1, 2, None, 4), 4: Place(2, 2, 2, None)}


def test_a_first_alternative_of_an_excluded_type_is_not_counted():
    memory = a_memory()
    memory.add(UserMessage("hello"), SystemMessage("be brief"))
    for message in (AiMessage("hi"), AiMessage("hey")):
        memory.rewind(1)
        memory.add(message)
    assert places(types=SPOKEN) == {3: Place(1, 2, None, 4), 4: Place(2, 2, 3, None)}


@pytest.mark.parametrize("gap", [1, NEAR - 1, NEAR, NEAR + 1, 3 * NEAR])
def test_non_history_messages_between_a_message_and_its_parent_are_ignored(gap):
    memory = a_memory()
    memory.add(UserMessage("hello"))
    memory.set([UserMessage("no history")] * gap)
    # The window holds only a few of them.
    Conversation.objects.update(next_sequence=gap + 2)
    memory.add(AiMessage("hi"))
    memory.rewind(1)
    memory.add(AiMessage("hey"))
    first = gap + 2
    assert places() == {first: Place(1, 2, None, first + 1), first + 1: Place(2, 2, first, None)}


def test_non_history_messages_before_the_first_message_are_ignored():
    memory = a_memory()
    Conversation.objects.create(memory_id="a", next_sequence=3 * NEAR)
    memory.add(UserMessage("hello"))
    memory.rewind(0)
    memory.add(UserMessage("good day"))
    first = 3 * NEAR
    assert places() == {first: Place(1, 2, None, first + 1), first + 1: Place(2, 2, first, None)}


def test_messages_outside_the_history_have_no_position():
    memory = answered_three_times()
    memory.set([UserMessage("no history")])
    memory.remove(3)
    found = conversation()
    assert found.places(found.messages.all()) == {2: Place(1, 2, None, 4), 4: Place(2, 2, 2, None)}


def test_concurrently_removed_messages_have_no_position():
    memory = answered_three_times()
    rows = list(conversation().history(all_branches=True))
    memory.remove(4)
    assert conversation().places(rows) == {2: Place(1, 2, None, 3), 3: Place(2, 2, 2, None)}


def test_a_thousand_alternatives_take_as_many_statements_as_two(django_assert_num_queries):
    a_memory().add(UserMessage("hello"), AiMessage("hi"))
    found = conversation()
    others = [
        Message(conversation=found, sequence=n, parent_sequence=1, on_path=False, type="AI", text="hey")
        for n in range(3, 1002)
    ]
    found.messages.bulk_create(others[:1])
    few = list(found.messages.all())
    with django_assert_num_queries(3):
        assert found.places(few) == {2: Place(1, 2, None, 3), 3: Place(2, 2, 2, None)}
    found.messages.bulk_create(others[1:])
    page = list(found.messages.filter(sequence__gt=900))
    with django_assert_num_queries(2):
        assert found.places(page)[950] == Place(949, 1_000, 949, 951)


def test_a_page_without_branches_takes_a_statement_unless_it_has_the_newest_messages(django_assert_num_queries):
    a_memory().add(UserMessage("hello"), AiMessage("hi"), UserMessage("good day"))
    found = conversation()
    newest, oldest = list(found.messages.filter(sequence__gt=1)), list(found.messages.filter(sequence__lt=3))
    with django_assert_num_queries(0):
        assert found.places(newest) == {}
    with django_assert_num_queries(1):
        assert found.places(oldest) == {}


def test_a_page_read_before_a_branch_began_has_positions_on_it():
    memory = a_memory()
    memory.add(UserMessage("hello"), AiMessage("hi"))
    stale = conversation()
    memory.add(AiMessage("hey"), after=1)
    rows = list(stale.messages.all())

    assert stale.places(rows) == conversation().places(rows) == {2: Place(1, 2, None, 3), 3: Place(2, 2, 2, None)}
    assert conversation().places(rows[:2]) == {2: Place(1, 2, None, 3)}


@pytest.mark.parametrize("seed", mostly_slow(range(8)))
@pytest.mark.parametrize("types", [None, SPOKEN, {MessageType.AI}])
def test_positions_match_the_alternatives_of_each_message(seed, types):
    a_random_conversation(random.Random(seed))
    found = conversation()
    wanted = {}
    for row in found.history(all_branches=True):
        alternatives = found.alternatives(row.sequence)
        if types is not None:
            alternatives = alternatives.filter(type__in=types)
        if types is not None and row.type not in types:
            continue
        if others := list(alternatives.values_list("sequence", flat=True)):
            order = sorted([*others, row.sequence])
            index = order.index(row.sequence)
            around = [None, *order, None]
            wanted[row.sequence] = Place(index + 1, len(order), around[index], around[index + 2])
    assert places(types=types) == wanted


def a_random_conversation(choices: random.Random) -> None:
    memory = a_memory()
    texts = (SystemMessage("be brief"), UserMessage("hello"), AiMessage("hi"))
    for _ in range(30):
        memory.add(choices.choice(texts))
        sequences = [*conversation().history(all_branches=True).values_list("sequence", flat=True)]
        verb = choices.random()
        if verb < 0.5:
            memory.rewind(choices.choice([0, *sequences]))
        elif verb < 0.6 and sequences:
            memory.remove(choices.choice(sequences))
        elif verb < 0.7:
            memory.set([UserMessage("no history")] * choices.randint(1, 4))
