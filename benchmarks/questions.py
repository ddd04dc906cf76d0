"""Questions of time and memory: a turn, an add and a read, by the length of the history and by the window."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from benchmarks.by_hand import ByHand, ByHandOnDjango
from benchmarks.databases import settle
from benchmarks.histories import Bound, texts
from benchmarks.measure import FULL, QUICK, WARM_UP, Effort, Timing, interleaved
from benchmarks.report import TIMES, Report, Results, table
from benchmarks.subjects import OriginalsWay, Ours, OursAsTurn, Subject, own_subjects

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Operation: TypeAlias = Callable[[int], object]

SHARED = 100_000
"""From this size on, subjects with the same tables share a conversation, since loading it takes time."""

OTHERS = 500
"""The number of other conversations."""


@dataclass
class Bench:
    """A run on *server*."""

    server: str
    report: Report
    quick: bool = False
    with_peers: bool = True
    sizes: Sequence[int] = ()
    _subjects: list[Subject] = field(default_factory=list)
    _loaded: set[str] = field(default_factory=set)

    @property
    def effort(self) -> Effort:
        return QUICK if self.quick else FULL

    def subjects(self) -> list[Subject]:
        """The subjects of this server, created once."""
        if not self._subjects:
            kinds = [ByHand, ByHandOnDjango, *own_subjects(self.server)]
            if self.with_peers:
                from benchmarks.async_peers import async_peers  # the peers' dependency group is optional
                from benchmarks.peers import LangChain

                kinds += [] if self.server == "mariadb" else [LangChain, *async_peers(self.server)]
            self._subjects = [kind(self.server, Bound()) for kind in kinds]
            for subject in self._subjects:
                if type(subject) is Ours or not isinstance(subject, (ByHand, Ours, OriginalsWay)):
                    self.load_others(subject)
        return self._subjects

    def labels(self) -> dict[str, str]:
        return {subject.name: subject.label for subject in self.subjects()}

    def keys(self, subject: Subject, size: int, what: str) -> list[str]:
        """Load conversations of *size* messages for *what*; enough that none grows by much more than a tenth."""
        if size >= SHARED and not isinstance(subject, OriginalsWay):
            # The hand-written SQL does not maintain all of our columns, so they cannot share a conversation.
            keys = [f"shared-{size}-limit" if isinstance(subject, ByHand) else f"shared-{size}"]
        else:
            copies = -(-(self.effort.rounds + WARM_UP) // max(1, size // 20))
            keys = [f"{what}-{size}-{subject.name}-{copy}" for copy in range(copies)]
        for key in keys:
            self._load(subject, key, size)
        return keys

    def load_others(self, subject: Subject) -> None:
        """Load other conversations: with a single one in its table, planners read the whole table."""
        for number in range(OTHERS // 5 if self.quick else OTHERS):
            self._load(subject, f"other-{number}", 40)

    def _load(self, subject: Subject, key: str, size: int) -> None:
        if (loaded := f"{subject.name} {key}") not in self._loaded:
            subject.load(key, size)
            self._loaded.add(loaded)

    def close(self) -> None:
        for subject in self._subjects:
            subject.close()


def turn(bench: Bench) -> None:
    """Measure a turn: add a user's message, read the memory, add a reply."""
    sizes = (10, 1000, 100_000) if bench.quick else (10, 100, 1000, 10_000, 100_000, 1_000_000)
    results = _by_size(bench, sizes, turning)
    name = f"turn-{bench.server}"
    bench.report.timings(name, results, bench.labels(), "messages in the history")
    bench.report.plot(name, results, bench.labels(), f"messages in the history ({bench.server})")


def flat(bench: Bench) -> None:
    """Measure turns at several lengths of history in one loop, without peers: the only way to compare lengths."""
    sizes = bench.sizes or ((100, 100_000) if bench.quick else (100, 10_000, 1_000_000))
    subjects = [each for each in bench.subjects() if isinstance(each, (ByHand, Ours))]
    operations = {
        f"{subject.name} {size}": turning(subject, bench.keys(subject, size, "flat"))
        for subject in subjects
        for size in sizes
    }
    settle(bench.server)
    timings = interleaved(operations, bench.effort)
    rows = []
    for subject in subjects:
        times = [timings[f"{subject.name} {size}"].microseconds for size in sizes]
        rows.append([subject.label, *(f"{each:,.0f} · **{each / times[0]:.2f} {TIMES}**" for each in times)])
    head = ["messages in the history", *(f"{size:,}" for size in sizes)]
    bench.report.section(f"flat-{bench.server}", table(head, rows))


def add(bench: Bench) -> None:
    """Measure an add of one message."""
    results = _by_size(bench, (1000,) if bench.quick else (100, 10_000), _adding)
    bench.report.timings(f"add-{bench.server}", results, bench.labels(), "messages in the history")


def read(bench: Bench) -> None:
    """Measure a read of the memory."""
    results = _by_size(bench, (1000,) if bench.quick else (100, 10_000), _reading)
    bench.report.timings(f"read-{bench.server}", results, bench.labels(), "messages in the history")


def window(bench: Bench) -> None:
    """Measure an add and a read, by the size of the window; the history is long enough to fill it."""
    tokens = (1000, 8000, 128_000) if bench.quick else (1000, 4000, 16_000, 64_000, 128_000)
    messages = (10, 1000) if bench.quick else (10, 100, 1000)
    kinds = [
        ByHand,
        ByHandOnDjango,
        *(kind for kind in own_subjects(bench.server) if kind not in (OriginalsWay, OursAsTurn)),
    ]
    for unit, limits in (("tokens", tokens), ("messages", messages)):
        results: dict[str, Results] = {"add": {}, "read": {}}
        for limit in limits:
            for what, timings in _with_window(bench, kinds, Bound(limit, unit)).items():
                for name, timing in timings.items():
                    results[what].setdefault(name, {})[limit] = timing
        labels = {kind.name: kind.label for kind in kinds}
        for what in results:
            name = f"window-{what}-{unit}-{bench.server}"
            bench.report.timings(name, results[what], labels, f"{what}, window of {unit}")


def _with_window(bench: Bench, kinds: Sequence[type[Subject]], bound: Bound) -> dict[str, dict[str, Timing]]:
    bench.subjects()  # loads other conversations
    subjects = [kind(bench.server, bound) for kind in kinds]
    keys = {kind.name: f"window-{bound.limit}-{bound.unit}{'-limit' * issubclass(kind, ByHand)}" for kind in kinds}
    for key in set(keys.values()):
        subjects[0].load(key, 10_000)
    settle(bench.server)
    adds = {subject.name: _adding(subject, [keys[subject.name]]) for subject in subjects}
    reads = {subject.name: _reading(subject, [keys[subject.name]]) for subject in subjects}
    found = {"add": interleaved(adds, bench.effort), "read": interleaved(reads, bench.effort)}
    _check(subjects, keys["limit"])
    subjects[0].close()  # the others share their connections with what follows
    return found


def memory(bench: Bench) -> None:
    """Measure the most memory that a read takes, in Python."""
    size = 1000 if bench.quick else 10_000
    rows = []
    for subject in bench.subjects():
        key = bench.keys(subject, size, "memory")[0]
        subject.read(key)
        tracemalloc.start()
        before, _peak = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        result = subject.read(key)
        _now, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        rows.append([subject.label, len(result), f"{(peak - before) / 1024:,.0f} KiB"])
    head = [f"a read of {size:,} messages of history", "messages returned", "peak"]
    bench.report.section(f"memory-{bench.server}", table(head, rows))


def turning(subject: Subject, keys: list[str]) -> Operation:
    """Return a turn that uses the next of *keys* each time."""
    messages = texts()
    return lambda n: subject.turn(
        keys[n % len(keys)], messages[2 * n % len(messages)], messages[(2 * n + 1) % len(messages)]
    )


def _adding(subject: Subject, keys: list[str]) -> Operation:
    messages = texts()
    return lambda n: subject.add(keys[n % len(keys)], messages[n % len(messages)], is_user=n % 2 == 0)


def _reading(subject: Subject, keys: list[str]) -> Operation:
    return lambda n: subject.read(keys[n % len(keys)])


def _by_size(bench: Bench, sizes: Sequence[int], make: Callable[[Subject, list[str]], Operation]) -> Results:
    results: Results = {}
    for size in bench.sizes or sizes:
        able = [subject for subject in bench.subjects() if subject.largest >= size]
        keys = {subject.name: bench.keys(subject, size, make.__name__) for subject in able}
        settle(bench.server)
        operations = {subject.name: make(subject, keys[subject.name]) for subject in able}
        for name, timing in interleaved(operations, bench.effort).items():
            results.setdefault(name, {})[size] = timing
        _check(able, keys["limit"][0])
    return results


def _check(subjects: Sequence[Subject], key: str) -> None:
    """Check that the hand-written SQL and our store agree about a conversation that the former wrote to."""
    by_hand = next(subject for subject in subjects if isinstance(subject, ByHand))
    ours = next(subject for subject in subjects if type(subject) is Ours)
    if by_hand.read(key) != ours.read(key):
        raise AssertionError(f"The hand-written SQL and our store give different memories of {key!r}.")
