"""The errors for a question, and for an answer, that a memory's window cannot hold."""

from __future__ import annotations

from chatmemory_django.chat.model import ContextLengthError


class QuestionTooLongError(ContextLengthError):
    """
    The question does not fit in the memory's window, even alone, so the model was not called.

    It needs *needed* tokens; *beside* of these are those of the system message, pinned messages, the context and the
    tools. *limit* is the window's.
    """

    def __init__(self, needed: int, limit: int, beside: int = 0) -> None:
        super().__init__(needed, limit, beside)
        self.needed = needed
        self.limit = limit
        self.beside = beside

    def __str__(self) -> str:
        return (
            f"The question needs {self.needed:,} tokens, of which {self.beside:,} are for the system message, pins, "
            f"the context and the tools; the memory's window has {self.limit:,}. Ask a shorter one, or configure a "
            "larger window."
        )


class AnswerTooLongError(ContextLengthError):
    """
    What tools have returned in this answer does not fit in the memory's window, even shortened.

    Question, calls, thinking and results need *needed* tokens; *limit* is the window's. What is stored stays.
    """

    def __init__(self, needed: int, limit: int) -> None:
        super().__init__(needed, limit)
        self.needed = needed
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"The calls of tools and their results, with the question and the model's thinking, need {self.needed:,} "
            f"tokens even if all results are shortened; the memory's window has {self.limit:,}. Let the model call "
            "fewer tools in one answer, or configure a larger window."
        )
