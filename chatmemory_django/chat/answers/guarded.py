"""What the guards of an assistant let pass: in their order, each sees what the one before has left."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from django.utils.functional import Promise
from msgspec.structs import replace

from chatmemory_django.chat.answers.context import NAMES, Checked
from chatmemory_django.chat.guards import Guard, GuardFunction, GuardRefusedError, Refuse, Retry, Rewrite, Verdict
from chatmemory_django.messages import BLANK, AiMessage, TextContent, UserMessage
from chatmemory_django.private import private

logger = logging.getLogger(__name__)

MAX_RETRIES = 2
"""How often the model is asked once more for an answer, whatever the guards return."""

MAX_HELD = 1_000_000
"""How many characters of an answer are held back for guards; a longer one is refused."""

_Guards = Sequence[Guard | GuardFunction]


class Guards:
    """The *guards* of questions or, with an *answer* among their parameters, of answers."""

    def __init__(self, guards: _Guards, where: str, *names: str) -> None:
        found = [each if isinstance(each, Guard) else Guard(each) for each in guards]
        self._where = where
        self._guards = [(each, Checked(each.function, where, (*NAMES, *names))) for each in found]

    def __bool__(self) -> bool:
        return bool(self._guards)

    @property
    def functions(self) -> list[Checked]:
        """What is called."""
        return [function for _, function in self._guards]

    @private
    def question(self, message: str | UserMessage, values: Mapping[str, Any]) -> UserMessage:
        """Return the question that is asked in place of *message*; raise ``GuardRefusedError`` if there is none."""
        question = UserMessage(message) if isinstance(message, str) else message
        for guard, function in self._guards:
            match self._verdict(guard, function, {**values, "question": question}):
                case Refuse(text):
                    raise GuardRefusedError(f"{function.name} has refused the question.", text)
                case Rewrite(UserMessage() as text):
                    question = _asked(text, function)
                case Rewrite(text):
                    others = [each for each in question.contents if not isinstance(each, TextContent)]
                    question = _asked(replace(question, contents=(TextContent(str(text)), *others)), function)
        return question

    @private
    def answer(self, message: AiMessage, values: Mapping[str, Any]) -> AiMessage | Retry:
        """Return the answer that is given in place of *message*, or ``Retry``; otherwise, as ``question``."""
        for guard, function in self._guards:
            verdict = self._verdict(guard, function, {**values, "answer": message})
            match verdict:
                case Refuse(text):
                    raise GuardRefusedError(f"{function.name} has refused the answer.", text)
                case Rewrite(text):  # the attributes may repeat the model's text, as what its vendor wants back does
                    message = AiMessage(str(text), tool_execution_requests=message.tool_execution_requests)
                case Retry():
                    return verdict
        return message

    def _verdict(self, guard: Guard, function: Checked, values: Mapping[str, Any]) -> Verdict:
        """Return what *guard* decides. One that is not async cannot be interrupted: it is late when it has ended."""
        began = time.monotonic()
        try:
            verdict: Any = function.value(values, guard.timeout)
            if time.monotonic() - began > guard.timeout:
                raise TimeoutError  # noqa: TRY301  # late is as good as failed
        except Exception as exc:  # noqa: BLE001  # whatever it is, what it has not seen must not pass
            logger.warning("The guard %s failed with %s.", function.name, type(exc).__name__)
            return None if guard.fails_open else Refuse()
        is_of_answer = "answer" in values
        match verdict:
            case None | Refuse() | Rewrite(str() | Promise()):
                return verdict
            case Rewrite(UserMessage()) if not is_of_answer:
                return verdict
            case Retry() if is_of_answer:
                return verdict
            case Rewrite(text):
                found = f"Rewrite of {type(text).__name__}"
            case _:
                found = type(verdict).__name__
        raise TypeError(f"{self._where}: {function.name} returned {found}; see chat.guards.")


@private
def _asked(question: UserMessage, function: Checked) -> UserMessage:
    """Return *question*, as *function* has rewritten it, without blank texts; ``GuardRefusedError`` if none is left."""
    contents = [each for each in question.contents if not isinstance(each, TextContent) or each.text.strip(BLANK)]
    if not contents:
        raise GuardRefusedError(f"{function.name} has rewritten the question to a blank text, so it is not asked.")
    return replace(question, contents=tuple(contents))
