"""Matching of tool results to tool calls."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import msgspec

from chatmemory_django.messages import AiMessage, ChatMessage, SystemMessage, ToolExecutionResultMessage

REJECTED = "rejected"
"""The key in the metadata of a message that a model's server did not accept, with the reason."""

SHORTENED = "shortened"
"""
The key in the metadata of a model's message with the results that it was sent shortened: by the id of the call, how
many tokens were sent, and how many there are.
"""

NOT_ACCEPTED = "The model could not read the result of this call, so it is left out."
"""What a model reads of a result that it was sent, and that its server did not accept."""

UNKNOWN = "This call was interrupted: its outcome is unknown. It is not run again."
"""What a model reads of a call that has no result, and that waits for nothing."""

NOT_RUN = "not_run"
"""The attribute that is true for the result of a call that was not run, since nobody approved it."""


def repair_tools(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """
    Return *messages* without tool calls that have no result, and without results that have no call.

    ``tool_answers`` defines which belong together. An AI message keeps its text and its answered calls; it is omitted
    if it has neither.
    """
    if not any(
        message.tool_execution_requests
        if isinstance(message, AiMessage)
        else isinstance(message, ToolExecutionResultMessage)
        for message in messages
    ):
        return list(messages)
    answers = tool_answers(messages)
    results = set(answers.values())
    repaired: list[ChatMessage] = []
    for index, message in enumerate(messages):
        if isinstance(message, ToolExecutionResultMessage) and index not in results:
            continue
        if isinstance(message, AiMessage) and message.tool_execution_requests:
            calls = enumerate(message.tool_execution_requests)
            requests = tuple(request for position, request in calls if (index, position) in answers)
            if len(requests) < len(message.tool_execution_requests):
                if not requests and message.text is None:
                    continue
                message = msgspec.structs.replace(message, tool_execution_requests=requests)
        repaired.append(message)
    return repaired


def tool_answers(messages: Sequence[ChatMessage]) -> dict[tuple[int, int], int]:
    """
    Map each answered call, as (index of its message, index in that message), to the index of its result.

    A result answers a call before it that has the same id and no answer yet: the first such call of the latest message
    that has one, since the results of parallel calls are in the order of the calls. Calls and results without an id are
    matched by the name of the tool.
    """
    open_calls: dict[tuple[str | None, str | None], list[tuple[int, int]]] = {}
    answers: dict[tuple[int, int], int] = {}
    for index, message in enumerate(messages):
        if isinstance(message, AiMessage):
            for position, request in enumerate(message.tool_execution_requests):
                open_calls.setdefault(_call_key(request.id, request.name), []).append((index, position))
        elif isinstance(message, ToolExecutionResultMessage):
            calls = open_calls.get(_call_key(message.id, message.tool_name))
            if calls:
                latest = calls[-1][0]
                answers[calls.pop(bisect_left(calls, (latest, 0)))] = index
    return answers


def in_order_of_calls(messages: Sequence[ChatMessage]) -> Iterator[tuple[int, int | None]]:
    """
    Yield the indexes of *messages* in an order in which the results follow their calls directly, one for each.

    In place of a result that is not there, the index of the message with the call and the call's position in it are
    yielded; with all others, None. Results without a call are left out.
    """
    answers = tool_answers(messages)
    for index, message in enumerate(messages):
        if isinstance(message, ToolExecutionResultMessage):
            continue
        yield index, None
        for position in range(len(message.tool_execution_requests) if isinstance(message, AiMessage) else 0):
            found = answers.get((index, position))
            yield (index, position) if found is None else (found, None)


def has_open_calls(messages: Sequence[ChatMessage]) -> bool:
    """Return whether *messages* end with tool calls of which some have no result yet."""
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if isinstance(message, AiMessage):
            calls = len(message.tool_execution_requests)
            return calls > 0 and len(tool_answers(messages[index:])) < calls
        if not isinstance(message, ToolExecutionResultMessage | SystemMessage):
            return False
    return False


MAX_DISTANCE = 128
"""How many messages before and after a message are searched for the calls or the results that belong to it."""


def counterparts(messages: Sequence[ChatMessage], index: int) -> set[int]:
    """
    Return the indexes of the messages that belong with the message at *index*, excluding itself.

    For a message that calls tools, these are the results that answer it; for a result, the message that it answers and
    that message's other results.
    """
    answers = tool_answers(messages)
    caller = next((call for (call, _), result in answers.items() if index in {call, result}), index)
    return ({caller} | {result for (call, _), result in answers.items() if call == caller}) - {index}


def _call_key(call_id: str | None, name: str | None) -> tuple[str | None, str | None]:
    return (None, name) if call_id is None else (call_id, None)
