"""Branches in JSON lines, in forks, and in histories after pruning."""

import datetime
import itertools
import json
from collections.abc import Collection

import pytest
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from chatmemory_django import operations
from chatmemory_django.core.branches import Thinning, Tree
from chatmemory_django.messages import AiMessage, MessageType, SystemMessage, UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.models.messages import REMOVED
from chatmemory_django.operations import fork
from chatmemory_django.operations.jsonl import JsonLinesError, check_lines, export_lines, import_lines
from tests.database.test_fork import AN_ADD, EVERY_VERB, VERBS, a_memory, do, source, summarize, texts, user_messages
from tests.strategies import IN_DATABASE

pytestmark = pytest.mark.django_db

numbers = itertools.count()
COLUMNS = (
    *("sequence", "type", "text", "payload", "superseded", "in_history", "on_path", "parent_sequence", "metadata"),
    "cleared_before",
)
PLACES = (
    *("next_sequence", "window_start", "pinned_sequence", "summary_sequence", "parent_sequence", "forgotten_through"),
    *("total_messages", "memory_messages", "memory_tokens", "counted_by"),
    *("evicted_limit", "evicted_by", "kept_out_through"),
)


def lines_of(conversation: Conversation, types: Collection[MessageType] | None = None) -> list[str]:
    return list(export_lines(Conversation.objects.filter(pk=conversation.pk), types=types))


def imported(lines: list[str]) -> Conversation:
    found: list[Conversation] = []
    import_lines(lines, rename=True, each=lambda conversation, _: found.append(conversation))
    return Conversation.objects.get(pk=found[0].pk)


def rows(conversation: Conversation) -> list[tuple]:
    return list(conversation.messages.exclude(REMOVED).order_by("sequence").values_list(*COLUMNS))


def places(conversation: Conversation) -> list:
    return [getattr(conversation, name) for name in PLACES]


def known_places(copy: Conversation, original: Conversation) -> list:
    """Return the places of *copy*, without the total of its counts if only the import knows it."""
    if not original.counted_by:
        copy.memory_tokens, copy.counted_by = original.memory_tokens, ""
    return places(copy)


def alternatives(conversation: Conversation) -> dict[int, list[int]]:
    return {
        row.sequence: list(conversation.alternatives(row.sequence).values_list("sequence", flat=True))
        for row in conversation.history(all_branches=True)
    }


def a_tree() -> Conversation:
    """Create 1 and 2, then three branches: 3 and 4; 5; the active 6, with 8 and a sibling 7."""
    memory = a_memory(limit=9)
    memory.add(SystemMessage("be brief"), UserMessage("hi"), AiMessage("first"), UserMessage("and?"))
    memory.rewind(2)
    memory.add(AiMessage("second"))
    memory.rewind(2)
    memory.add(AiMessage("third"), UserMessage("well"))
    memory.rewind(6)
    memory.add(UserMessage("good"))
    return source()


class TestRoundTrip:
    def test_branches_and_the_active_path_are_restored(self):
        conversation = a_tree()
        a_memory(limit=9).rewind(6)

        copy = imported(lines_of(conversation))

        assert rows(copy) == rows(conversation)
        assert places(copy) == places(source())
        assert alternatives(copy) == alternatives(source())
        assert a_memory(copy.memory_id, 9).switch(3) == a_memory(limit=9).switch(3) == 4
        assert texts(Conversation.objects.get(pk=copy.pk).history()) == ["be brief", "hi", "first", "and?"]

    def test_summaries_and_evictions_are_restored(self):
        memory = a_memory(limit=9)
        memory.add(*user_messages("one", "two", "three"))
        memory.clear()
        memory.add(*user_messages("four", "five"))
        summarize(6, 4)

        copy = imported(lines_of(source()))

        assert texts(copy.memory()) == ["summary of 4", "five"]
        assert (rows(copy), places(copy)) == (rows(source()), places(source()))

    def test_a_removed_message_and_its_summary_are_not_exported(self):
        memory = a_memory(limit=9)
        memory.add(*user_messages("one", "two", "three"))
        summarize(4, 2)
        memory.remove(2)

        lines = lines_of(source())
        copy = imported(lines)

        assert [json.loads(line)["sequence"] for line in lines[1:]] == [1, 3]
        assert (rows(copy), places(copy)) == (rows(source()), places(source()))

    def test_what_was_cleared_stays_away_on_each_branch(self):
        memory = a_memory(limit=9)
        memory.add(*user_messages("one", "two"))
        memory.clear()
        memory.add(*user_messages("three"))
        memory.rewind(1)

        copy = imported(lines_of(source()))
        memory_of_copy = a_memory(copy.memory_id, 9)

        for to, remembered in ((3, ["three"]), (2, []), (1, ["one"])):
            memory_of_copy.rewind(to)
            assert [message.single_text for message in memory_of_copy.messages()] == remembered

    def test_lines_from_versions_without_branches_are_imported(self):
        a_memory(limit=9).add(*user_messages("one", "two"))
        head, *others = map(json.loads, lines_of(source()))
        for name in ("parent_sequence", "summary_sequence", "forgotten_through"):
            del head[name]
        assert [set(each) for each in others] == [{"record", "sequence", "created_at", "message"}] * 2

        copy = imported(list(map(json.dumps, [head, *others])))

        assert (rows(copy), places(copy)) == (rows(source()), places(source()))

    @IN_DATABASE
    @given(
        verbs=st.lists(st.one_of(AN_ADD, *EVERY_VERB), max_size=20),
        later=st.lists(st.one_of(AN_ADD, *EVERY_VERB), max_size=4),
        keep_history=st.booleans(),
    )
    def test_any_sequence_of_operations_is_restored(self, verbs, later, keep_history):
        memory = a_memory(f"machine {next(numbers)}", 4, keep_history=keep_history)
        do(memory, verbs)
        conversation = Conversation.objects.filter(memory_id=memory.id).first()
        if conversation is None:
            return
        lines = lines_of(conversation)
        copy = imported(lines)
        assert (rows(copy), known_places(copy, conversation)) == (rows(conversation), places(conversation))
        assert alternatives(copy) == alternatives(conversation)
        do(memory, later)
        do(a_memory(copy.memory_id, 4, keep_history=keep_history), later)
        assert rows(copy) == rows(conversation)
        copy, conversation = (Conversation.objects.get(pk=each.pk) for each in (copy, conversation))
        assert known_places(copy, conversation) == places(conversation)


class TestSomeTypesOnly:
    @pytest.mark.parametrize("last", [AiMessage("two"), UserMessage("two")])
    def test_what_was_cleared_stays_away_without_the_last_message_before_it(self, last):
        memory = a_memory(limit=9)
        memory.add(UserMessage("one"), last)
        memory.clear()
        memory.add(UserMessage("three"))
        memory.rewind(1)

        memory_of_copy = a_memory(imported(lines_of(source(), [MessageType.USER])).memory_id, 9)
        memory_of_copy.switch(3)

        assert memory_of_copy.messages() == [UserMessage("three")]

    def test_omitted_messages_do_not_break_the_branches(self):
        conversation = a_tree()

        copy = imported(lines_of(conversation, [MessageType.USER]))

        assert [(row.sequence, row.parent_sequence, row.on_path) for row in copy.messages.all()] == [
            (2, None, True),
            (4, None, False),
            (7, 2, False),
            (8, 2, True),
        ]
        assert texts(copy.history()) == ["hi", "good"]

    def test_summaries_and_system_messages_are_omitted(self):
        a_memory(limit=9).add(SystemMessage("secret"), *user_messages("one", "two"))
        summarize(4, 2)

        lines = lines_of(source(), [MessageType.USER, MessageType.AI])

        assert "secret" not in "".join(lines)
        assert "summary of" not in "".join(lines)
        assert texts(imported(lines).memory()) == ["two"]

    def test_a_summary_covers_the_remaining_ancestor_of_an_omitted_message(self):
        a_memory(limit=9).add(SystemMessage("secret"), *user_messages("one", "two"))
        summarize(4, 2)

        copy = imported(lines_of(source(), [MessageType.SYSTEM]))

        assert copy.summary_sequence == 4
        assert copy.messages.get(sequence=4).parent_sequence == 1

    def test_a_summary_of_only_omitted_messages_covers_nothing(self):
        a_memory(limit=9).add(*user_messages("one", "two", "three"))
        summarize(4, 2)

        copy = imported(lines_of(source(), [MessageType.SYSTEM]))

        assert copy.summary_sequence == 4
        assert copy.messages.get(sequence=4).parent_sequence == 0
        assert not copy.history().exists()

    @IN_DATABASE
    @given(verbs=st.lists(st.one_of(AN_ADD, *EVERY_VERB), max_size=20), types=st.sets(st.sampled_from(MessageType)))
    def test_a_partial_export_can_always_be_imported_and_keeps_its_paths(self, verbs, types):
        memory = a_memory(f"machine {next(numbers)}", 4)
        do(memory, verbs)
        conversation = Conversation.objects.filter(memory_id=memory.id).first()
        if conversation is None:
            return
        copy = imported(lines_of(conversation, types))
        kept = conversation.messages.filter(type__in=types)
        assert set(copy.history().values_list("sequence", flat=True)) == set(
            kept.history().values_list("sequence", flat=True)
        )
        for row in copy.history(all_branches=True):
            expected = paths(conversation).path_to(row.sequence)
            sequences = kept.history(all_branches=True).values_list("sequence", flat=True)
            wanted = [each for each in sequences if any(start <= each <= end for start, end in expected)]
            found = [each for each in sequences if any(s <= each <= e for s, e in paths(copy).path_to(row.sequence))]
            assert found == wanted


class TestRejectedLines:
    @pytest.mark.parametrize(
        ("line", "changes", "problem"),
        [
            (5, {"parent_sequence": 5}, "parent_sequence is 5, but must be below the sequence, 5"),
            (2, {"on_path": False, "superseded": True}, "the messages 2 to 4 have on_path false"),
            (4, {"on_path": True, "superseded": False}, "the messages 4 to 4 have on_path true"),
            (5, {"superseded": False}, "on_path is false, so superseded must be true"),
            (6, {"parent_sequence": 1}, "the messages 1 to 2 have on_path true"),
            (0, {"parent_sequence": 4}, "have on_path"),
            (0, {"parent_sequence": 9}, "parent_sequence is 9, which is not a message of the history"),
            (0, {"forgotten_through": 9}, "forgotten_through is 9, but next_sequence is 9"),
            (0, {"kept_out_through": 9}, "kept_out_through is 9, but next_sequence is 9"),
            (0, {"summary_sequence": 1}, "summary_sequence is 1, which is not a summary"),
            (0, {"summary_sequence": 8}, "summary_sequence is 8, which is not a summary"),
            (7, {"in_history": False, "on_path": True}, "on_path is true, but in_history is false"),
            (8, {"in_history": False, "on_path": False}, "only messages of the history can have a parent_sequence"),
        ],
    )
    def test_an_impossible_tree_is_rejected(self, line, changes, problem):
        lines = list(map(json.loads, lines_of(a_tree())))
        lines[line] |= changes

        with pytest.raises(JsonLinesError, match=problem):
            check_lines(map(json.dumps, lines))

    def test_a_parent_outside_the_history_is_rejected(self):
        memory = a_memory(limit=9)
        memory.add(*user_messages("one"))
        memory.set([AiMessage("set")])
        memory.add(*user_messages("two"))
        lines = list(map(json.loads, lines_of(source())))
        lines[3]["parent_sequence"] = 2

        with pytest.raises(JsonLinesError, match="parent_sequence is 2, which is not part of the history"):
            check_lines(map(json.dumps, lines))

    @pytest.mark.parametrize(
        "changes", [{"message": {"type": "AI", "text": "x"}}, {"superseded": False}, {"metadata": {}}]
    )
    def test_an_invalid_summary_is_rejected(self, changes):
        a_memory(limit=9).add(*user_messages("one", "two"))
        summarize(3, 1)
        lines = list(map(json.loads, lines_of(source())))
        lines[3] |= changes

        with pytest.raises(
            JsonLinesError, match="only messages of the history can have a parent_sequence, and summaries"
        ):
            check_lines(map(json.dumps, lines))


class TestPruning:
    def test_children_of_a_pruned_message_move_to_its_parent(self):
        memory = a_memory(limit=9)
        memory.add(*user_messages("one", "two", "three"))
        memory.rewind(1)
        memory.add(*user_messages("old", "young"))
        memory.switch(3)
        prune(memory.id, 4)

        assert memory.switch(5) == 5
        assert texts(source().history()) == ["one", "young"]
        assert alternatives(source()) == {1: [], 2: [5], 3: [], 5: [2]}

    def test_a_conversation_whose_newest_message_is_pruned_stays_on_its_branch(self):
        memory = a_memory(limit=1)
        memory.add(*user_messages("one", "two"))
        memory.rewind(0)
        memory.add(*user_messages("other"))
        memory.clear()
        prune(memory.id, 3)

        assert texts(source().history()) == []
        assert broken(source()) == set()
        memory.add(*user_messages("new"))
        assert texts(source().history()) == ["new"]
        assert broken(source()) == set()

    @IN_DATABASE
    @given(
        verbs=st.lists(st.one_of(AN_ADD, *EVERY_VERB), max_size=20),
        old=st.sets(st.integers(1, 30)),
        page=st.integers(1, 6),
    )
    def test_remaining_messages_stay_on_their_paths(self, verbs, old, page):
        memory = a_memory(f"machine {next(numbers)}", 3)
        do(memory, verbs)
        conversation = Conversation.objects.filter(memory_id=memory.id).first()
        if conversation is None:
            return
        before, on_path = paths(conversation), list(conversation.history().values_list("sequence", flat=True))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("chatmemory_django.models.remains.BATCH", page)
            prune(memory.id, *old)
        conversation.refresh_from_db()
        after = paths(conversation)
        left = list(conversation.history(all_branches=True).values_list("sequence", flat=True))
        assert list(conversation.history().values_list("sequence", flat=True)) == [
            each for each in on_path if each in left
        ]
        for sequence in left:
            assert reached(left, after, sequence) == reached(left, before, sequence)
        parents = conversation.history(all_branches=True).exclude(parent_sequence=None)
        assert set(parents.values_list("parent_sequence", flat=True)) <= {0, *left}
        imported(lines_of(conversation))


def test_pruning_a_tree_prunes_each_of_its_paths():
    thinning = Thinning([(4, 2), (6, 4), (8, 3)], [2, 3, 4, 9])

    assert [thinning.parent_of(sequence) for sequence in (1, 3, 5, 7, 8)] == [None, None, 1, 1, 3]
    assert [thinning.stand_in(sequence) for sequence in (2, 4, 9)] == [1, 1, 8]


def prune(memory_id: object, *sequences: int) -> None:
    conversations = Conversation.objects.filter(memory_id=memory_id)
    long_ago = timezone.now() - datetime.timedelta(days=9)
    conversations.get().messages.filter(sequence__in=sequences).update(created_at=long_ago)
    operations.prune(conversations, history_older_than=datetime.timedelta(days=5))


def paths(conversation: Conversation) -> Tree:
    named = conversation.history(all_branches=True).exclude(parent_sequence=None)
    return Tree(named.values_list("sequence", "parent_sequence"), conversation.next_sequence)


def reached(sequences: list[int], tree: Tree, to: int) -> list[int]:
    return [each for each in sequences if any(start <= each <= end for start, end in tree.path_to(to))]


class TestExamination:
    @pytest.mark.slow
    @IN_DATABASE
    @given(
        verbs=st.lists(st.one_of(AN_ADD, *EVERY_VERB), max_size=20),
        keep_history=st.booleans(),
        old=st.sets(st.integers(1, 30)),
    )
    def test_no_problem_is_found_after_any_sequence_of_operations(self, verbs, keep_history, old):
        memory = a_memory(f"machine {next(numbers)}", 4, keep_history=keep_history)
        do(memory, verbs)
        sets = [message for verb, message, _ in verbs if verb in VERBS[2:4]]
        several = {"system_message"} if any(isinstance(message, SystemMessage) for message in sets) else set()
        if conversation := Conversation.objects.filter(memory_id=memory.id).first():
            assert broken(conversation) - several == set()  # ``set`` may store several there.
            assert broken(fork(conversation)) - several == set()
            prune(memory.id, *old)
            assert broken(conversation) - several == set()

    def test_no_problem_is_found_in_a_summary(self):
        a_memory(limit=9).add(SystemMessage("be brief"), *user_messages("one", "two"))
        summarize(4, 2)

        assert broken(source()) == set()

    @pytest.mark.parametrize(
        ("sequence", "changes", "rule"),
        [
            (5, {"parent_sequence": 5}, "parent_sequence"),
            (5, {"parent_sequence": 7}, "parent_sequence"),
            (3, {"on_path": True}, "on_path"),
            (2, {"on_path": False}, "on_path"),
            (8, {"parent_sequence": 5}, "on_path"),
            (7, {"superseded": False}, "off_path"),
            (7, {"in_history": False, "on_path": True}, "on_path"),
            (8, {"in_history": False}, "parent_sequence"),
        ],
    )
    def test_a_corrupted_row_is_found(self, sequence, changes, rule):
        assert broken(a_tree()) == set()
        source().messages.filter(sequence=sequence).update(**changes)

        assert rule in broken(source())

    @pytest.mark.parametrize(
        ("changes", "rule"),
        [
            ({"parent_sequence": 9}, "parent_sequence"),
            ({"parent_sequence": 7}, "on_path"),
            ({"forgotten_through": 9}, "forgotten_through"),
            ({"kept_out_through": 9}, "kept_out_through"),
            ({"summary_sequence": 8}, "summary_sequence"),
        ],
    )
    def test_a_corrupted_conversation_is_found(self, changes, rule):
        a_tree()
        Conversation.objects.update(**changes)

        assert rule in broken(source())

    def test_a_summary_of_another_branch_is_found(self):
        a_tree()
        summarize(9, 3)

        assert broken(source()) == {"summary_sequence"}


def broken(conversation: Conversation) -> set[str]:
    findings: list[operations.Finding] = []
    operations.check(Conversation.objects.filter(pk=conversation.pk), lambda _: None, findings.append)
    return {finding.rule.value for finding in findings}
