"""Results as Markdown, in README.md between markers, and as plots."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import ages
from benchmarks.databases import server_version

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.measure import Timing

HERE = Path(__file__).parent
TIMES = "\N{MULTIPLICATION SIGN}"
PACKAGES = (
    *("django", "psycopg", "mysqlclient", "msgspec", "tiktoken", "langchain-core", "langchain-postgres"),
    *("langchain-community", "openai-agents", "llama-index-core", "sqlalchemy", "asyncpg", "aiosqlite"),
)

Results = dict[str, dict[int, "Timing"]]
"""Durations by the name of the subject and the size."""


class Report:
    """Prints results as they come and, if it *writes*, stores them in README.md."""

    def __init__(self, *, writes: bool) -> None:
        self.writes = writes
        self.stamp = ages.stamp()  # before the measurement, which is a load of its own

    def section(self, name: str, markdown: str) -> None:
        """Store *markdown* and what it was measured on between the markers *name*."""
        markdown = f"{markdown}\n\n{self.stamp}"
        print(f"\n[{name}]\n{markdown}\n", flush=True)
        if not self.writes:
            return
        readme = HERE / "README.md"
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        text, count = re.subn(
            rf"(?s){re.escape(begin)}.*?{re.escape(end)}",
            lambda _match: f"{begin}\n\n{markdown}\n\n{end}",
            readme.read_text(),
        )
        if not count:
            raise LookupError(f"README.md has no {begin} … {end}.")
        readme.write_text(text)

    def timings(self, name: str, results: Results, labels: Mapping[str, str], unit: str = "") -> None:
        """Return a table of medians and their ratios to the limit."""
        sizes = sorted({size for timings in results.values() for size in timings})
        limit = results["limit"]
        rows = []
        for subject, timings in results.items():
            cells = []
            for size in sizes:
                timing = timings.get(size)
                if timing is None:
                    cells.append("")
                elif subject == "limit":
                    cells.append(f"{timing.microseconds:,.0f} µs")
                else:
                    ratio = timing.microseconds / limit[size].microseconds
                    few = f" ({timing.runs} runs)" if timing.runs < 10 else ""
                    cells.append(f"{timing.microseconds:,.0f} · **{ratio:,.2f} {TIMES}**{few}")
            rows.append([labels[subject], *cells])
        self.section(name, table([unit, *(f"{size:,}" for size in sizes)], rows))

    def plot(self, name: str, results: Results, labels: Mapping[str, str], axis: str) -> None:
        """Draw a line for each subject, with logarithmic scales."""
        if not self.writes:
            return
        import matplotlib as mpl

        mpl.use("svg")
        from matplotlib import pyplot

        mpl.rcParams["svg.fonttype"] = "none"  # text stays text, which is smaller
        mpl.rcParams["svg.hashsalt"] = "benchmarks"  # the same figures give the same file
        figure, axes = pyplot.subplots(figsize=(9, 5))
        for subject, timings in results.items():
            sizes = sorted(timings)
            is_ours = subject.startswith("ours")
            axes.loglog(
                sizes,
                [timings[size].microseconds / 1000 for size in sizes],
                marker="o",
                markersize=4,
                linewidth=2.5 if is_ours else 1.2,
                linestyle="--" if subject == "limit" else "-",
                label=re.sub(r"[*`]", "", labels[subject]),
            )
        axes.set_xlabel(axis)
        axes.set_ylabel("ms, median")
        axes.grid(visible=True, which="major", alpha=0.3)
        axes.legend(fontsize=8)
        figure.tight_layout()
        figure.savefig(HERE / f"{name}.svg", metadata={"Date": None})
        pyplot.close(figure)

    def machine(self, servers: Sequence[str]) -> None:
        """Describe the machine and the versions."""
        processor = platform.processor()
        if (cpuinfo := Path("/proc/cpuinfo")).exists():
            processor = re.search(r"model name\s*: (.*)", cpuinfo.read_text())[1]
        lines = [
            f"{os.cpu_count()} {TIMES} {processor}, {platform.system()} {platform.release()}, "
            f"Python {platform.python_version()}, {', '.join(map(server_version, servers))}.",
            ", ".join(f"{package} {_version(package)}" for package in PACKAGES) + ".",
        ]
        self.section("machine", "\n".join(lines))


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---", *(["--:"] * (len(head) - 1))], *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"
