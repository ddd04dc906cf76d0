"""What must hold after the soak of runs: it reads the database by SQL, and the file of effects, and nothing else."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.chat.askers import Asked
from benchmarks.chat.judge import Findings
from benchmarks.chat.model import END
from benchmarks.databases import connect

MESSAGES = (
    "SELECT c.memory_id, m.type, m.text, m.payload, m.client_message_id, m.is_complete "
    "FROM chatmemory_message m JOIN chatmemory_conversation c ON c.id = m.conversation_id "
    "WHERE m.in_history ORDER BY c.id, m.sequence"
)
RUNS = "SELECT state, COUNT(*) FROM chatmemory_chat_run GROUP BY state"
ACTIVE = (
    "SELECT c.memory_id, r.id, r.state, r.question, r.is_stopping, r.fence, c.fence, r.created_at, r.lease "
    "FROM chatmemory_chat_run r JOIN chatmemory_conversation c ON c.id = r.conversation_id WHERE r.active IS NOT NULL"
)

RAISED = re.compile(
    r"^(?:\w+\.)*\w+(?:Error|Exception|Shutdown|Lost)\b.*$(?!\n\n(?:During handling|The above exception))", re.MULTILINE
)
"""What a traceback in a log ends with: not those from which another one was raised, as Django does in its caches."""


class Row(NamedTuple):
    """A stored message."""

    memory_id: str
    type: str
    text: str
    payload: str | None
    client_message_id: str | None
    is_complete: int

    @property
    def calls(self) -> dict[str, str]:
        """The keys of its calls, by their ids."""
        calls = json.loads(self.payload or "{}").get("toolExecutionRequests") or ()
        return {call["id"]: json.loads(call["arguments"])["key"] for call in calls}


def rows(server: str, statement: str) -> list[Any]:
    """Return the rows of *statement*."""
    connection = connect(server)
    try:
        cursor = connection.cursor()
        cursor.execute(statement)
        return list(cursor.fetchall())
    finally:
        connection.close()


def judge(server: str, asked: Sequence[Asked], effects: Path, findings: Findings, done: Counter[str]) -> None:
    """Check all questions that were *asked*, and all *effects*."""
    happened = Counter(line.split()[0] for line in effects.read_text().splitlines())
    done.update({f"runs {state}": count for state, count in rows(server, RUNS)})
    turns: dict[tuple[str, str], list[list[Row]]] = {}
    for row in map(Row._make, rows(server, MESSAGES)):
        if row.type == "USER":
            turn = [row]
            turns.setdefault((row.memory_id, json.loads(row.text)[0]), []).append(turn)
        else:
            turn.append(row)
    for each in asked:
        judge_question(each, turns.get((each.memory_id, each.plan.key), []), happened, findings, done)


def judge_question(
    asked: Asked, turns: Sequence[list[Row]], happened: Counter[str], findings: Findings, done: Counter[str]
) -> None:
    """Check the question that was *asked*: *turns* are the messages of each time that it is stored."""
    shown = f"{asked.memory_id} {asked.plan} {asked.outcome} " + " | ".join(
        f"{row.type} {row.text[-20:]}" for turn in turns for row in turn
    )
    answers = [row for turn in turns for row in turn if row.type == "AI" and row.text.endswith(END)]
    findings.check("question that is stored twice", shown, holds=len(turns) <= 1)
    findings.check("question with two answers", shown, holds=len(answers) <= 1)
    if asked.outcome == "answered":
        is_whole = len(turns) == len(answers) == 1 and bool(turns[0][0].is_complete) and turns[0][-1] is answers[0]
        findings.check("question without its answer", shown, holds=is_whole)
    stored = [row.text for turn in turns for row in turn if row.type == "AI" and row.text]
    for steps, is_end in asked.texts:
        places = [len(stored) - len(steps)] if is_end else range(len(stored))
        is_same = any(stored[place : place + len(steps)] == steps for place in places)
        findings.check("stream unlike what is stored", f"{steps} {stored} {shown}", holds=is_same)
    calls = {key: "" for turn in turns for row in turn for key in row.calls.values()}
    for turn in turns:
        ids: dict[str, str] = {}
        for row in turn:
            ids |= row.calls
            if row.type == "TOOL_EXECUTION_RESULT":
                key = ids.get(json.loads(row.payload or "{}")["id"])
                findings.check("result without its call", f"{row.text} {shown}", holds=key is not None)
                if key is not None:
                    findings.check("result that is stored twice", f"{key} {shown}", holds=not calls[key])
                    calls[key] = row.text
    denied = {key for key, approved in asked.decisions.values() if not approved}
    for key, result in calls.items():
        claims, is_unknown = result == f"did {key}", not result or "outcome is unknown" in result
        done["calls whose outcome is unknown"] += is_unknown
        findings.check("effect that is lost", f"{key} {shown}", holds=not claims or happened[key] == 1)
        findings.check("effect that was denied", f"{key} {shown}", holds=key not in denied or not happened[key])
        is_known = claims or is_unknown or key in denied or result == f"here {key}" or asked.outcome != "answered"
        findings.check("result of nobody", f"{key} {result} {shown}", holds=is_known)
    if asked.outcome == "answered":
        expected = {call.arguments for number in range(len(asked.plan.rounds)) for call in asked.plan.calls(number)}
        keys = {json.loads(each)["key"] for each in expected}
        findings.check("call that was left out", f"{keys - calls.keys()} {shown}", holds=keys == calls.keys())
    begun = {key for key in happened if key.startswith(asked.plan.key)}
    for key in begun:
        findings.check("effect that happened twice", (key, happened[key]), holds=happened[key] == 1)
    findings.check("effect that nothing knows of", f"{begun - calls.keys()} {shown}", holds=begun <= calls.keys())
