"""The judge of the soak of runs finds what it is there for."""

import json
from collections import Counter

import pytest

from benchmarks.chat.acting import Plan
from benchmarks.chat.askers import Asked, Seen
from benchmarks.chat.judge import Findings
from benchmarks.chat.runs_judge import RAISED, Row, judge_question

PLAN = Plan("k", [["act"]], 1, 0.0)
CALL = {"id": "call-0-0", "name": "act", "arguments": '{"key": "k.0.0"}'}
QUESTION = Row("c", "USER", json.dumps(PLAN), None, "k", 1)
CALLS = Row("c", "AI", "a1 ", json.dumps({"toolExecutionRequests": [CALL]}), None, 1)
RESULT = Row("c", "TOOL_EXECUTION_RESULT", "did k.0.0", json.dumps({"id": "call-0-0"}), None, 1)
ANSWER = Row("c", "AI", "b2 .", None, None, 1)
TURN = [QUESTION, CALLS, RESULT, ANSWER]


def kinds(turns=(TURN,), happened=("k.0.0",), **seen) -> set[str]:
    findings = Findings()
    asked = Asked("c", PLAN, begins_branch=False, **{"outcome": "answered", **seen})
    judge_question(asked, turns, Counter(happened), findings, Counter())
    return set(findings.kinds)


def test_an_answer_as_it_should_be_has_no_fault():
    assert kinds(texts=[(["a1 "], False), (["a1 ", "b2 ."], True), (["b2 ."], True)]) == set()


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        ({"turns": []}, "question without its answer"),
        ({"turns": [TURN, TURN]}, "question that is stored twice"),
        ({"turns": [[*TURN, ANSWER]]}, "question with two answers"),
        ({"turns": [[QUESTION._replace(is_complete=0), *TURN[1:]]]}, "question without its answer"),
        ({"turns": [[QUESTION, CALLS, RESULT, RESULT, ANSWER]]}, "result that is stored twice"),
        ({"turns": [[QUESTION, RESULT, CALLS, ANSWER]]}, "result without its call"),
        ({"turns": [[QUESTION, ANSWER]], "happened": []}, "call that was left out"),
        ({"turns": [[QUESTION, ANSWER]]}, "effect that nothing knows of"),
        ({"turns": [[QUESTION, CALLS, RESULT._replace(text="Sorry."), ANSWER]]}, "result of nobody"),
        ({"happened": []}, "effect that is lost"),
        ({"happened": ["k.0.0", "k.0.0"]}, "effect that happened twice"),
        ({"decisions": {"1": ("k.0.0", False)}}, "effect that was denied"),
        ({"texts": [(["a1 "], True)]}, "stream unlike what is stored"),
        ({"texts": [(["b2 "], False)]}, "stream unlike what is stored"),
    ],
)
def test_a_fault_is_found(found, fault):
    assert fault in kinds(**found)


@pytest.mark.parametrize("happened", [["k.0.0"], []])
def test_a_call_whose_outcome_is_unknown_happened_once_or_not_at_all(happened):
    assert kinds([[QUESTION, CALLS, ANSWER]], happened) == set()


@pytest.mark.parametrize("outcome", ["stopped", "left"])
def test_a_question_that_its_client_gave_up_needs_no_answer(outcome):
    assert kinds([[QUESTION, CALLS, RESULT]], outcome=outcome) == set()
    assert kinds([[QUESTION, CALLS, RESULT]]) == {"question without its answer"}


def test_of_a_traceback_the_last_error_counts():
    log = "KeyError: 'owner'\n\nDuring handling of the above exception, …\n\nValueError: y\nmore\nTypeError: z\n"

    assert RAISED.findall(log) == ["ValueError: y", "TypeError: z"]


def test_steps_that_were_made_void_are_no_part_of_what_was_seen():
    events = [
        {"type": "start", "messageId": "m"},
        {"type": "start-step"},
        {"type": "text-delta", "delta": "lost "},
        {"type": "data-restarted", "data": {"step": 1}},
        {"type": "start-step"},
        {"type": "text-delta", "delta": "b2 "},
        {"type": "text-delta", "delta": "."},
        {"type": "tool-input-available", "toolCallId": "1", "toolName": "ask_first", "input": {"key": "k.0.0"}},
        {"type": "tool-approval-request", "toolCallId": "1", "approvalId": "a"},
        {"type": "finish"},
    ]

    seen = Seen(events)

    assert (seen.answer_id, seen.steps, seen.ends, seen.waits) == ("m", ["b2 ."], "finish", True)
    assert not Seen([*events, {"type": "tool-output-available", "toolCallId": "1"}]).waits
