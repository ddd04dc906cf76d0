"""Runs: one at a time in a conversation, and none that has lost its lease stores anything."""

import signal
import threading
from collections.abc import Iterator
from datetime import timedelta
from uuid import uuid4

import pytest
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied
from django.db import connection, connections, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from chatmemory_django.chat.models import Run
from chatmemory_django.chat.runs import leases, renewals
from chatmemory_django.chat.runs.leases import DEAD_AFTER, Progress, State, Taken
from chatmemory_django.memory import MessageWindowChatMemory
from chatmemory_django.messages import AiMessage, NewMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.operations import erase
from chatmemory_django.stores.base import LeaseLostError
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.database.interleaving import another_writer, set_isolation
from tests.database.test_concurrency import states, worker

__all__ = ["worker"]  # a fixture

pytestmark = pytest.mark.django_db(transaction=True)

ISOLATIONS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]

IS_SQLITE = connection.vendor == "sqlite"


def take(memory_id: str = "c", owner: object = None) -> Taken | float:
    return leases.take("default", memory_id, owner, uuid4())


def let_die(taken: Taken) -> None:
    """Pretend that the process of a run has renewed no lease for long."""
    leases.leave(taken)
    Run.objects.filter(pk=taken.run).update(lease=F("lease") - timedelta(seconds=DEAD_AFTER + 1))


def store(taken: Taken, text: str) -> None:
    """Store an answer as the run *taken* does."""
    memory = memory_of("c")
    memory.store.append_messages("c", [NewMessage(AiMessage(text))], memory.window(), fence=taken.fence)


def memory_of(memory_id: str) -> MessageWindowChatMemory:
    return MessageWindowChatMemory(max_messages=10, id=memory_id, store=DjangoChatMemoryStore())


def texts() -> list[str]:
    return list(Message.objects.order_by("sequence").values_list("text", flat=True))


@pytest.fixture
def isolation(request) -> Iterator[None]:
    if not IS_SQLITE:
        set_isolation(request.param)
    yield
    connection.close()


class TestTaking:
    def test_a_run_has_the_fence_of_its_conversation(self):
        memory_of("c").add(UserMessage("Hi."))

        taken = take()

        conversation = Conversation.objects.get()
        run = Run.objects.get()
        assert taken == Taken(run.pk, conversation.pk, 1, "default")
        assert (run.conversation, run.active, run.fence) == (conversation, conversation.pk, conversation.fence)
        assert (run.state, run.is_stopping, run.ended_at, conversation.version) == ("running", False, None, 2)

    def test_while_it_is_in_progress_no_other_one_is_taken(self):
        first = take()

        silent_for = take()

        assert 0 <= silent_for < DEAD_AFTER
        assert Conversation.objects.get().fence == first.fence
        assert leases.find("default", "c", None) == first.run
        assert [run.pk for run in Run.objects.all()] == [first.run]

    def test_when_it_has_ended_the_next_one_has_another_fence(self):
        memory_of("c").add(UserMessage("Hi."))
        first = take()

        assert leases.end(first, State.DONE, 3)
        second = take()

        assert second.fence == first.fence + 1
        ended = Run.objects.get(pk=first.run)
        assert (ended.state, ended.active, ended.question) == ("done", None, 3)
        assert ended.ended_at is not None

    def test_one_that_waits_is_in_nobodys_way(self):
        memory_of("c").add(UserMessage("Hi."))
        leases.end(take(), State.WAITING)

        assert isinstance(take(), Taken)

    def test_one_whose_process_is_dead_gives_way(self):
        dead = take()
        let_die(dead)

        second = take()

        assert second.fence == dead.fence + 1
        assert Run.objects.get(pk=dead.run).state == "interrupted"
        assert not leases.end(dead, State.DONE)
        assert Run.objects.get(pk=dead.run).state == "interrupted"
        assert isinstance(take(), float)

    def test_of_many_that_are_taken_at_once_one_is(self):
        memory_of("c").add(UserMessage("Hi."))
        taken: list[Taken | float] = []
        start = threading.Barrier(8)

        def take_one() -> None:
            start.wait()
            taken.append(take())
            connections.close_all()

        threads = [threading.Thread(target=take_one) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert len(taken) == 8
        assert [each.fence for each in taken if isinstance(each, Taken)] == [1]
        assert Conversation.objects.get().fence == 1

    @pytest.mark.parametrize("after", [1, 2, 3, 4, 5, 6])
    def test_another_process_between_any_two_statements_takes_it_or_does_not(self, after):
        memory_of("c").add(UserMessage("Hi."))
        let_die(take())
        taken: list[Taken | float] = []

        with another_writer(lambda: taken.append(take()), after):
            taken.append(take())

        assert sum(isinstance(each, Taken) for each in taken) == 1
        assert Run.objects.filter(active__isnull=False).count() == 1
        assert Conversation.objects.get().fence == 2

    def test_runs_in_other_conversations_do_not_matter(self):
        assert isinstance(take("c"), Taken)
        assert isinstance(take("d"), Taken)

    def test_a_conversation_that_is_taken_is_not_written_to(self):
        memory_of("c").add(UserMessage("Hi."))
        before = Conversation.objects.values("version", "updated_at", "next_sequence").get()

        take()

        assert Conversation.objects.values("version", "updated_at", "next_sequence").get() == before

    @pytest.mark.skipif(connection.vendor != "postgresql", reason="other databases have no such statement")
    def test_it_takes_one_statement(self, django_assert_num_queries):
        memory_of("c").add(UserMessage("Hi."))

        with django_assert_num_queries(1):
            take()

    @pytest.mark.skipif(connection.vendor == "postgresql", reason="that takes one")
    def test_it_takes_two_statements_in_a_transaction(self):
        memory_of("c").add(UserMessage("Hi."))

        with CaptureQueriesContext(connection) as captured:
            take()

        named = [each["sql"].split()[0] for each in captured if each["sql"].split()[0] not in {"BEGIN", "COMMIT"}]
        assert named == ["UPDATE", "INSERT"]


class TestOwners:
    @pytest.fixture
    def ann(self):
        return get_user_model().objects.create_user("ann")

    def test_a_conversation_of_another_user_cannot_be_taken(self, ann):
        bob = get_user_model().objects.create_user("bob")
        take("c", ann.pk)

        with pytest.raises(PermissionDenied):
            take("c", bob.pk)

        assert Conversation.objects.get().fence == 1

    def test_keys_may_be_texts(self, ann):
        assert isinstance(take("c", str(ann.pk)), Taken)
        assert isinstance(take("c", str(ann.pk)), float)

    def test_it_is_found_by_its_owner_alone(self, ann):
        taken = take("c", ann.pk)

        assert leases.find("default", "c", str(ann.pk)) == taken.run
        assert leases.find("default", "c", ann.pk + 1) is None
        let_die(taken)
        assert leases.find("default", "c", ann.pk) is None

    def test_those_in_progress_are_counted(self, ann):
        bob = get_user_model().objects.create_user("bob")
        take("of bob", bob.pk)
        counts = [leases.running("default", ann.pk, 9)]
        one, other = take("one", ann.pk), take("other", ann.pk)
        counts.append(leases.running("default", str(ann.pk), 9))
        counts.append(leases.running("default", ann.pk, 1))  # no more than that is read
        leases.end(one, State.DONE)
        counts.append(leases.running("default", ann.pk, 9))
        let_die(other)
        counts.append(leases.running("default", ann.pk, 9))

        assert counts == [0, 2, 1, 1, 0]


class TestNewConversations:
    def test_one_that_does_not_exist_is_created(self):
        owner = get_user_model().objects.create_user("ann")

        taken = take("new", owner.pk)

        assert (taken.is_new, taken.fence) == (True, 1)
        assert Conversation.objects.get().owner == owner

    def test_a_run_that_stored_nothing_leaves_none(self):
        leases.end(take("new"), State.FAILED)

        assert not Conversation.objects.exists()
        assert not Run.objects.exists()

    def test_what_was_stored_stays(self):
        taken = take("new")
        memory_of("new").add(UserMessage("Hi."))

        leases.end(taken, State.FAILED)

        assert texts() == ["Hi."]

    def test_one_that_was_there_stays(self):
        memory_of("c").add(UserMessage("Hi."))
        Message.objects.all().delete()

        leases.end(take("c"), State.FAILED)

        assert Conversation.objects.exists()

    def test_one_that_the_next_run_has_taken_stays(self):
        first = take("new")
        let_die(first)
        second = take("new")

        leases.end(first, State.FAILED)

        assert Conversation.objects.get().pk == second.conversation


class TestFence:
    """A process that was taken for dead goes on, and finds out by storing nothing."""

    def test_it_stores_while_it_has_the_lease(self):
        store(take(), "mine")

        assert texts() == ["mine"]

    def test_it_stores_nothing_once_it_has_lost_it(self):
        dead = take()
        let_die(dead)
        take()

        with pytest.raises(LeaseLostError):
            store(dead, "late")

        assert texts() == []

    @pytest.mark.parametrize("isolation", ISOLATIONS if not IS_SQLITE else ["SERIALIZABLE"], indirect=True)
    @pytest.mark.parametrize("after", [1, 2, 3, 4, 5])
    def test_one_that_pauses_between_any_two_statements_of_a_write_stores_before_the_other_or_nothing(
        self, after, isolation
    ):
        memory_of("c").add(UserMessage("Hi."))
        dead = take()
        let_die(dead)
        seen: list[list[str]] = []

        def take_over() -> None:
            taken = take()
            assert isinstance(taken, Taken)
            seen.append(texts())
            store(taken, "new")

        with another_writer(take_over, after):
            try:
                store(dead, "old")
            except LeaseLostError:
                has_stored = False
            else:
                has_stored = True

        # Who takes a conversation sees all that others will ever have stored.
        assert seen == [["Hi.", "old"] if has_stored else ["Hi."]]
        assert texts() == [*seen[0], "new"]


class TestErasing:
    def test_an_erased_conversation_has_no_runs(self):
        taken = take()

        erase(Conversation.objects.all())

        assert not Run.objects.exists()
        assert leases.progress("default", taken.run) == (Progress.LOST, None)
        assert not leases.end(taken, State.DONE)

    @pytest.mark.parametrize("after", [1, 2, 3, 4])
    def test_an_erasure_between_any_two_statements_leaves_a_run_of_a_conversation_that_lives(self, after):
        memory_of("c").add(UserMessage("Hi."))

        with another_writer(lambda: erase(Conversation.objects.all()), after):
            taken = take()

        if Conversation.objects.exists():
            assert Run.objects.get().conversation.pk == taken.conversation
        else:
            assert not Run.objects.exists()


class TestStopping:
    def test_its_process_learns_of_it(self):
        one, other, gone = take("one"), take("other"), take("gone")

        leases.stop("default", one.run)
        Conversation.objects.get(memory_id="gone").delete()

        assert leases.stopping("default", [one, other, gone]) == {one.run: True, other.run: False}

    def test_one_that_has_ended_is_not_stopped(self):
        memory_of("c").add(UserMessage("Hi."))
        taken = take()
        leases.end(taken, State.DONE)

        leases.stop("default", taken.run)

        assert not Run.objects.get().is_stopping


class TestProgress:
    def test_of_each_kind(self):
        memory_of("c").add(UserMessage("Hi."))
        runs, dead, taken_over, ended = take("runs"), take("dead"), take("taken"), take("c")
        let_die(dead)
        let_die(taken_over)
        take("taken")
        leases.end(ended, State.FAILED)

        keys = runs.run, dead.run, taken_over.run, ended.run, uuid4()
        found = [leases.progress("default", each)[0] for each in keys]

        assert found == [Progress.RUNS, Progress.LOST, Progress.LOST, Progress.ENDED, Progress.LOST]


class TestTransactions:
    """Runs in a transaction of the caller, which nobody else sees."""

    def test_they_are_not_renewed(self):
        memory_of("c").add(UserMessage("Hi."))
        with transaction.atomic():
            taken = take()
            assert not renewals.Renewal.running
            assert leases.end(taken, State.DONE)

        assert Run.objects.get().state == "done"

    def test_one_in_progress_breaks_none(self):
        take()

        with transaction.atomic():
            assert isinstance(take(), float)
            memory_of("d").add(UserMessage("Hi."))

        assert texts() == ["Hi."]

    def test_a_rollback_takes_them_along(self):
        memory_of("c").add(UserMessage("Hi."))

        with pytest.raises(RuntimeError), transaction.atomic():
            take()
            raise RuntimeError

        assert not Run.objects.exists()
        assert Conversation.objects.get().fence == 0

    @pytest.mark.parametrize("isolation", ISOLATIONS if not IS_SQLITE else ["SERIALIZABLE"], indirect=True)
    def test_what_the_transaction_stores_is_read_as_it_is_now(self, isolation):
        memory_of("c").add(UserMessage("Hi."))
        with transaction.atomic():
            taken = take()
            store(taken, "mine")
            assert len(memory_of("c").messages()) == 2
            leases.end(taken, State.DONE)

        assert texts() == ["Hi.", "mine"]


@pytest.mark.slow
class TestProcesses:
    def test_each_has_the_conversation_for_itself(self, worker):
        processes = [worker("take", 5) for _ in range(3)]
        printed = [process.communicate()[0].split() for process in processes]

        assert printed == [["begins", "ends"] * 5] * 3
        [found, _] = states(worker)
        texts = found["texts"]
        assert len(texts) == 30
        assert [each.replace("begins", "ends") for each in texts[::2]] == texts[1::2]

    def test_one_that_paused_and_was_taken_for_dead_stores_nothing_more(self, worker):
        paused = worker("take", 1)
        assert paused.stdout.readline() == "begins\n"
        paused.send_signal(signal.SIGSTOP)
        other = worker("take", 1).communicate()[0].split()

        paused.send_signal(signal.SIGCONT)

        assert paused.communicate()[0].split() == ["lost"]
        assert other == ["begins", "ends"]
        assert [text.split()[-1] for text in states(worker)[0]["texts"]] == ["begins", "begins", "ends"]


class TestPruning:
    def test_old_ones_are_deleted(self):
        for name in ("old", "new", "dead", "runs"):
            memory_of(name).add(UserMessage("Hi."))
        old, new, dead, runs = map(take, ("old", "new", "dead", "runs"))
        leases.end(old, State.DONE)
        leases.end(new, State.DONE)
        let_die(dead)
        Run.objects.filter(pk=old.run).update(ended_at=F("ended_at") - timedelta(seconds=5))
        leases.leave(runs)

        assert leases.prune("default", 4) == 2

        assert set(Run.objects.values_list("pk", flat=True)) == {new.run, runs.run}

    def test_many_are_deleted_in_batches(self, monkeypatch):
        monkeypatch.setattr(leases, "PRUNE_BATCH", 2)
        memory_of("c").add(UserMessage("Hi."))
        for _ in range(5):
            leases.end(take(), State.DONE)
        Run.objects.update(ended_at=F("ended_at") - timedelta(days=8))

        assert leases.prune("default", 7 * 24 * 60 * 60) == 5
