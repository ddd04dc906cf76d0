"""The results as Markdown tables in README.md."""

from __future__ import annotations

from typing import Any

from benchmarks.report import Report, table

NAMES = {
    "sqlite": "SQLite",
    "postgresql": "PostgreSQL",
    "postgresql-pool": "PostgreSQL, pool and server-side binding",
    "mariadb": "MariaDB",
}

BY_HAND = "`model.chat(messages)`, a list"
JSON_BY_HAND = "a view that calls the model, as JSON"
STREAM_BY_HAND = "a view that calls the model, as a stream"
COMPARED_WITH = {
    BY_HAND: None,
    "`assistant.chat`": BY_HAND,
    "`await assistant.achat`": BY_HAND,
    "`async for … in assistant.astream`": BY_HAND,
    JSON_BY_HAND: None,
    "`POST /api/chat`, JSON": JSON_BY_HAND,
    STREAM_BY_HAND: None,
    "`POST /api/chat`, a stream": STREAM_BY_HAND,
}
"""The subjects, and what each is compared with."""


def write(question: str, found: dict[str, Any], report: Report) -> int:
    """Print the tables, to README.md if *report* writes; return 1 if there were findings."""
    match question:
        case "turn":
            for on, by_size in found.items():
                report.section(f"chat-turn-{on}", _turns(on, by_size))
        case "streams" | "protocols" | "overload":
            for on, asked in found.items():
                rows = [[name, *row] for name, row in asked["rows"]]
                report.section(f"chat-{question}-{on}", table(["", *asked["head"]], rows))
                if compared := asked.get("beside"):
                    rows = [[name, *row] for name, row in compared["rows"]]
                    report.section(f"chat-beside-{on}", table(["", *compared["head"]], rows))
        case "dropped":
            report.section("chat-dropped", _counted(found))
        case "runs":  # a check: its counts are nothing to publish
            print(_counted(found))
    faults = [f"{NAMES[on]}: {line}" for on, each in found.items() for line in _findings(each)]
    print("\n".join(faults), flush=True)
    return int(bool(faults))


def _findings(found: dict[str, Any]) -> list[str]:
    return [*found.get("findings", ()), *(found.get("beside") or {}).get("findings", ())]


def _turns(on: str, by_size: dict[str, dict[str, float]]) -> str:
    """Return a row for each subject: its time in ms, and the difference from what it is compared with."""
    rows = []
    for label, other in COMPARED_WITH.items():
        cells = [
            f"{each[label] / 1000:.2f}" + ("" if other is None else f" · **+{(each[label] - each[other]) / 1000:.2f}**")
            for each in by_size.values()
        ]
        rows.append([label, *cells])
    head = [f"{NAMES[on]}, ms; messages in the history", *(f"{int(size):,}" for size in by_size)]
    return table(head, rows)


def _counted(found: dict[str, Any]) -> str:
    names = dict.fromkeys(name for each in found.values() for name in each["done"])
    rows = [[name, *(f"{each['done'].get(name, 0):,}" for each in found.values())] for name in names]
    rows.append(["**faults**", *(f"**{each['faults']}**" for each in found.values())])
    return table(["", *(NAMES[on] for on in found)], rows)
