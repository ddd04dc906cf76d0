"""
Random acts in random conversations, one after the other or two at once, and what the judge finds.

    python -m tests.database.chat.answers.driver --answers 10000 --seed 1    each act in a process that may be killed

The database is a new one on the server of ``DATABASE_URL``, by default a file.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import logging
import os
import signal
import sys
import tempfile
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from random import Random

if __name__ == "__main__":
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
    django.setup()

from django.conf import settings
from django.db import connection, connections
from django.test.utils import setup_test_environment

from chatmemory_django.chat.approvals import continuing
from tests.database.chat.answers import world
from tests.database.chat.answers.oracle import Chat, Tables, judge
from tests.database.chat.answers.world import CHAT, ERRORS, LEASED_FOR, REJECTIONS, WAYS, Act, Kill, Outcome, Question

MEMORIES = (
    {"max_messages": 6},
    {"max_messages": 20},
    {"max_messages": 10_000},
    {"max_tokens": 300},
    {"max_tokens": 100_000},
)
STAFF_WAYS = ("rest", "rest", "post")

CONVERSATIONS = 150
"""At most how many conversations go on by turns: a killed answer's lease ends while others are asked."""

MOST = 25
"""How many acts a conversation has before a last question, which nothing disturbs."""

PATIENCE = 90
"""Seconds after which an act counts as hanging."""

Perform = Callable[[Sequence[Act]], Sequence[Outcome]]


class Site:
    """Conversations in which *random* decides what happens, done by *perform*."""

    def __init__(self, random: Random, perform: Perform, *, kills: bool = False) -> None:
        self.random = random
        self.perform = perform
        self.kills = kills
        self.counts: Counter[str] = Counter()
        self._numbers = itertools.count(1)

    def chat(self) -> Chat:
        """Begin a conversation."""
        return Chat(str(uuid.uuid4()), self.random.choice(MEMORIES))

    def step(self, chat: Chat, *, plain: bool = False) -> list[str]:
        """Do one act in *chat*, or two at once, and return what is wrong then."""
        before = Tables(chat.memory_id)
        acts = [self._plain(chat) if plain else self._act(chat, before)]
        if self.kills and not plain and self.random.random() < 0.1:
            is_same = acts[0].kind in {"ask", "retry", "decide", "staff"} and not acts[0].question.is_nameless
            is_same = is_same and self.random.random() < 0.5
            acts.append(self._again(acts[0]) if is_same else self._act(chat, before))
        elif self.kills and not plain and before.for_staff(pending=True) and self.random.random() < 0.3:
            acts.append(self._act(chat, before, "staff"))
        for act in acts if len(acts) > 1 else ():
            act.delay = self.random.choice([0.0, 0.005, 0.02])
        self._note_overtaking(chat, acts)
        chat.acts += acts
        done = list(zip(acts, self.perform(acts), strict=True))
        found = list(judge(chat, done, world.world.news(), before))
        for act, outcome in done:
            self._note(chat, act, outcome)
        if len(acts) > 1:
            chat.waiting = ()
        return found

    def _note(self, chat: Chat, act: Act, outcome: Outcome) -> None:
        self.counts.update([f"{act.kind}: {outcome.kind}", f"as {act.way}"])
        if outcome.kind == "killed":
            chat.killed_at = time.monotonic()
            act.question.was_killed = True
        if outcome.kind == "waits" and act.kind != "resume":
            chat.waiting, chat.waits_for = outcome.asked, act.question
        elif act.kind in {"staff", "trespass"}:
            now = Tables(chat.memory_id)  # an answer about a decision evicts; what is the owner's waits in the memory
            there = {name for name, each in now.approvals.items() if each.sequence in now.memory} | now.of_staff.keys()
            left = () if outcome.kind == "killed" else chat.waiting
            chat.waiting = tuple(each for each in left if each in there.difference(outcome.decided))
        elif outcome.kind not in {"refused", "busy", "forbidden"}:
            chat.waiting = ()

    def _again(self, act: Act) -> Act:
        """Return the same act, by somebody else at the same time."""
        ways = STAFF_WAYS if act.kind == "staff" else WAYS
        return replace(act, number=next(self._numbers), way=self.random.choice(ways), kill=None, cut=None)

    def _plain(self, chat: Chat) -> Act:
        """Return a question that nothing disturbs."""
        return Act(next(self._numbers), "ask", chat.memory_id, chat.options, self._question(chat, plain=True))

    def _question(self, chat: Chat, client_id: str | None = None, *, plain: bool = False) -> Question:
        random, number = self.random, next(self._numbers)
        question = Question(f"q{number}", client_id or f"id-{number}")
        if not plain:
            rounds = random.choice([0, 0, 1, 1, 2, 3, 6])
            most = 1 if rounds == 6 else 8 if "max_messages" in chat.options and random.random() < 0.1 else 3
            letters = ["".join(random.choices("ppaatrfusgbb", k=random.randint(1, most))) for _ in range(rounds)]
            question.rounds = tuple(letters)
            question.ids = random.choice(["own", "own", "same", "round", "none"])
            question.rejected = random.choice(REJECTIONS) if random.random() < 0.05 else None
            question.is_too_long = chat.options.get("max_tokens") == 300 and random.random() < 0.2
        chat.questions.append(question)
        return question

    def _act(self, chat: Chat, now: Tables, kind: str | None = None) -> Act:
        random = self.random
        act = Act(next(self._numbers), kind or "", chat.memory_id, chat.options, Question("", ""))
        self._choose(act, chat, now)
        ways = {"staff": STAFF_WAYS, "trespass": (*WAYS, "rest")}.get(act.kind, WAYS)
        act.way, act.persist = random.choice(ways), random.choice(["early", "late"])
        act.calls_later = random.random() < 0.3
        letters = set("".join(act.question.rounds))
        if act.kind == "ask" and act.way != "post" and letters.isdisjoint("fsgb") and random.random() < 0.4:
            act.persist, act.question.is_nameless = "late", True  # nothing is taken before a tool is called
        if act.kind == "regenerate" and (row := now.asked(act.question)):
            act.after = row.sequence
        act.system = random.choice(["Be brief.", "Be brief.", "Be kind."])
        if random.random() < 0.35:
            act.errors = {random.choice([0, 0, 1, 2]): random.choice(ERRORS)}
            act.words_before_error = random.choice([0, 2])
            if act.by_staff and not now.is_newest(act.question):  # once the answer about the decision has failed
                act.question.generation += 1
        act.generations = self._generations(chat)
        if act.way in {"stream", "astream", "post"} and act.kind != "staff" and random.random() < 0.25:
            act.cut, act.stops = random.randint(1, 12), act.way == "post" and random.random() < 0.5
        if self.kills and random.random() < 0.3:
            where = random.choice(["statement", "statement", "effect", "request"])
            act.kill = Kill(where, random.randint(1, 25 if where == "statement" else 3), random.random() < 0.5)
        return act

    def _choose(self, act: Act, chat: Chat, now: Tables) -> None:
        """Choose what *act* is: what there is to be asked again, changed or decided depends on the tables *now*."""
        random = self.random
        newest = {question.client_id: question for question in chat.questions if not question.is_nameless}
        there = [each for each in newest.values() if (row := now.asked(each)) is None or row.on_path]
        stored = [each for each in there if now.asked(each) is not None]
        kinds = ["ask"] * 3 + ["retry"] * 3 * bool(there) + ["edit", "regenerate", "regenerate"] * bool(stored)
        pending, decided = now.for_staff(pending=True), now.for_staff(pending=False)
        kinds += ["staff", "staff", "staff", "trespass", "trespass"] * bool(pending) + ["resume"] * 3 * bool(decided)
        act.kind = act.kind or random.choice(["decide"] * 6 * bool(chat.waiting) + kinds)
        match act.kind:
            case "decide" if chat.waits_for is not None:
                act.question = chat.waits_for
                some = [each for each in chat.waiting if random.random() < 0.8] or chat.waiting
                owners = [each for each in some if each not in now.of_staff]
                others = [each for each in some if each not in now.of_client]
                act.by_staff = not owners or (bool(others) and random.random() < 0.3)
                act.decisions = [(each, random.random() < 0.7) for each in (others if act.by_staff else owners)]
            case "staff" | "trespass" | "resume":
                of_one = random.choice([*(pending or decided).values()])
                act.question = self._question_of(of_one.sequence, chat, now)
                some = [name for name, each in pending.items() if each == of_one or random.random() < 0.5]
                own = [each for each in chat.waiting if each not in {*now.of_staff, *now.of_client}]
                some += [each for each in own if random.random() < 0.3]
                some = [each for each in some if now.approvals[each].sequence == of_one.sequence]
                is_yes = random.random() < 0.9 if act.kind == "trespass" else random.random() < 0.7
                act.decisions = [(each, is_yes) for each in some if act.kind != "resume"]
            case "ask":
                act.question = self._question(chat)
            case "edit":
                act.question = self._question(chat, random.choice(stored).client_id)
            case _:
                recent = (there if act.kind == "retry" else stored)[-3:]
                act.question = random.choice(recent)
                self._note_generation(act, now)

    def _generations(self, chat: Chat) -> dict[str, int]:
        return {each.name: each.generation for each in chat.questions if each.generation}

    def _note_overtaking(self, chat: Chat, acts: Sequence[Act]) -> None:
        """
        What a new question may overtake is asked once more at the end then, and may do everything again.

        So may a regeneration of an answer that ends before, with what staff decide at the same time.
        """
        kinds = {act.kind for act in acts}
        overtaken = {"retry", "decide", "regenerate"} if kinds & {"ask", "edit"} else set()
        overtaken |= {"regenerate"} if "staff" in kinds else set()
        if not overtaken:
            return
        for act in acts:
            act.question.generation += act.kind in overtaken
        for act in acts:
            act.generations = self._generations(chat)

    def _question_of(self, sequence: int, chat: Chat, now: Tables) -> Question:
        asked = world.MARKED.search(now.rows[now.question_of(sequence)].text)
        return next(each for each in chat.questions if asked and each.name == asked[1])

    def _note_generation(self, act: Act, now: Tables) -> None:
        """A new answer to what has one, and a question that is asked once more at the end, may do everything again."""
        row, has_ended = now.asked(act.question), now.ended(act.question) is not None
        is_newest = now.is_newest(act.question)
        pending = now.for_staff(pending=True).values()
        waits = row is not None and any(now.question_of(each.sequence) == row.sequence for each in pending)
        if (act.kind == "regenerate" and has_ended) or not (has_ended or is_newest or waits):
            act.question.generation += 1


def in_this_process(acts: Sequence[Act]) -> list[Outcome]:
    return [world.perform(act) for act in acts]


def in_processes(acts: Sequence[Act]) -> list[Outcome]:
    """Do each of *acts* in a child, all at once; this process has no threads, so that it can be forked."""
    connections.close_all()
    sys.stdout.flush()
    return [_outcome(act, child) for act, child in [(act, _started(act)) for act in acts]]


def _file(act: Act) -> Path:
    return world.world.log.with_name(f"outcome-{act.number}")


def _started(act: Act) -> int:
    child = os.fork()
    if child:
        return child
    signal.alarm(PATIENCE)
    try:
        _file(act).write_text(json.dumps(world.perform(act)))
        os._exit(0)
    except BaseException:  # noqa: BLE001  # it must not go on as its parent
        traceback.print_exc()
        os._exit(1)


def _outcome(act: Act, child: int) -> Outcome:
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        kind, text, *lists = json.loads(_file(act).read_text())
        _file(act).unlink()
        return Outcome(kind, text, *map(tuple, lists))
    return Outcome({-signal.SIGKILL: "killed", -signal.SIGALRM: "hangs"}.get(code, "error"), f"The process: {code}.")


def drive(answers: int, seed: int, folder: Path) -> tuple[Counter[str], list[tuple[str, Chat]]]:
    """Do that many acts in processes of their own; return what was done, and what was found in which conversation."""
    world.begin(folder)
    continuing.PAUSE = 0.05
    import_module(settings.ROOT_URLCONF)  # or each process would
    gc.freeze()
    site, found, left = Site(Random(seed), in_processes, kills=True), [], answers
    chats = [site.chat() for _ in range(min(CONVERSATIONS, answers // 8))]
    while chats:
        place = site.random.randrange(len(chats))
        chat = chats[place]
        if time.monotonic() < chat.killed_at + LEASED_FOR:
            time.sleep(0.001)
            continue
        is_last = left <= 0 or len(chat.acts) > MOST
        new = site.step(chat, plain=is_last)
        found += [(what, chat) for what in new]
        left -= 1
        if left > 0 and (new or is_last):
            chats[place] = site.chat()
        elif new or is_last:
            del chats[place]
    return site.counts, found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=Random().randrange(10**6))
    parser.add_argument("--examples", type=int, default=1, help="how many findings of each kind are shown in full")
    options = parser.parse_args()
    logging.disable()
    setup_test_environment()
    settings.CHATMEMORY = {**settings.CHATMEMORY, "CHAT": CHAT}
    with tempfile.TemporaryDirectory() as folder:
        name = f"answers_{os.getpid()}"
        is_file = connection.vendor == "sqlite"
        connection.settings_dict["TEST"]["NAME"] = str(Path(folder) / name) if is_file else name
        connection.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
        try:
            done, found = drive(options.answers, options.seed, Path(folder))
        finally:
            connection.creation.destroy_test_db("", verbosity=0)
    kinds = Counter(what.partition(":")[0] for what, _ in found)
    sys.stdout.write(f"seed {options.seed}\n{json.dumps(dict(sorted(done.items())), indent=1)}\n")
    for kind, count in kinds.most_common():
        sys.stdout.write(f"{count} times: {kind}\n")
        for what, chat in [each for each in found if each[0].startswith(kind)][: options.examples]:
            sys.stdout.write("\n        ".join([f"    {what}", *map(str, chat.acts)]) + "\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
