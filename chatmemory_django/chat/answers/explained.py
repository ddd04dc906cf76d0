"""What people are shown of an answer that failed."""

from __future__ import annotations

import logging
from functools import partial

from django.utils import formats, timezone
from django.utils.translation import gettext as _

from chatmemory_django.access import NotAllowedError
from chatmemory_django.chat.answers.rejections import Rejection
from chatmemory_django.chat.answers.shown import UnknownQuestionError
from chatmemory_django.chat.answers.too_long import AnswerTooLongError, QuestionTooLongError
from chatmemory_django.chat.approvals import NotPendingError
from chatmemory_django.chat.costs.ledger import BudgetExceededError
from chatmemory_django.chat.guards import GuardRefusedError
from chatmemory_django.chat.model import (
    ChatModelError,
    ContextLengthError,
    InvalidRequestError,
    ModelTimeoutError,
    RateLimitError,
    UnsupportedFileError,
)
from chatmemory_django.chat.runs.answer import InterruptedAnswerError
from chatmemory_django.chat.runs.leases import HandedOverError
from chatmemory_django.security import SecurityEvent
from chatmemory_django.stores.base import ConversationErasedError, LeaseLostError, MessageNotFoundError

logger = logging.getLogger(__name__)


def explained(error: Exception, rejected: Rejection | None = None) -> tuple[int, str]:
    """
    Return the HTTP status for an answer that failed with *error*, and a text for the user.

    *rejected* is why the model's server has rejected the question, if it has.
    """
    match error:
        case GuardRefusedError():
            return 422, str(error.text) or _rejection("content_filter")
        case InvalidRequestError() if rejected is not None:
            return 422, _rejection(rejected)
        case BudgetExceededError():
            until = formats.date_format(timezone.localtime(error.until), "DATETIME_FORMAT")
            return 429, _("Your budget for this chat is used up until %(until)s.") % {"until": until}
        case RateLimitError():
            return 503, _("The model has too much to do. Try again in a moment.")
        case ModelTimeoutError():
            return 504, _("The model took too long. Try again.")
        case QuestionTooLongError() if error.beside >= error.limit:
            return 413, _(
                "No message fits in this chat: what is sent along, such as tools, needs %(beside)s tokens by itself, "
                "and %(limit)s fit."
            ) % _numbers(error)
        case QuestionTooLongError():
            return 413, _(
                "Your message is too long for this chat: with all that is sent along, it needs %(needed)s tokens, and "
                "%(limit)s fit. Send a shorter one."
            ) % _numbers(error)
        case UnsupportedFileError():
            return 415, _rejection("file")
        case AnswerTooLongError():
            return 502, _(
                "What the tools of this chat have returned is too long: it needs %(needed)s tokens even shortened, and "
                "%(limit)s fit."
            ) % _numbers(error)
        case ContextLengthError():
            return 502, _("The conversation is too long for the model.")
        case ChatModelError():
            return 502, _("The model gave no answer. Try again.")
        case NotAllowedError():  # as if the assistant of the conversation is gone
            return error.status, str(error)
        case HandedOverError():
            return 409, _("A person answers in this conversation. What you write is stored for them.")
        case InterruptedAnswerError():
            return 502, _("The answer was interrupted. Try again.")
        case (
            ConversationErasedError()
            | LeaseLostError()
            | MessageNotFoundError()
            | NotPendingError()
            | UnknownQuestionError()
        ):
            return 409, _("The conversation has changed. Load it again.")
        case _:
            return 500, _("Something went wrong. Try again.")


def refused(error: Exception, rejected: Rejection | None = None) -> NotAllowedError:
    """Return the response to a question whose answer failed with *error* before it began; see ``explained``."""
    headers = {"Retry-After": f"{error.retry_after:.0f}"} if isinstance(error, BudgetExceededError) else {}
    status, text = explained(error, rejected)
    made = NotAllowedError(status, text, **headers)
    made.event = SecurityEvent.BUDGET if isinstance(error, BudgetExceededError) else None
    return made


def log_failure(error: Exception, memory_id: object) -> None:
    """Log that an answer failed with *error* after it began: what a model or others may do is no error of the site."""
    expected = ChatModelError | ConversationErasedError | InterruptedAnswerError | LeaseLostError | NotPendingError
    is_expected = isinstance(error, expected | HandedOverError | UnknownQuestionError)
    log = logger.warning if is_expected else partial(logger.error, exc_info=error)
    log("An answer in the conversation %r failed with %s.", memory_id, type(error).__name__)


def _rejection(reason: Rejection) -> str:
    """Return what a user can do about a question that the model's server has rejected."""
    match reason:
        case "too_long":
            return _("Your message is too long for the model, with what was written before. Send a shorter one.")
        case "content_filter":
            return _("The model's filter does not allow this message. Change it, and send it again.")
        case "file":
            return _("The model does not take this file. Send your message without it.")
        case "invalid":
            return _("The model does not take this message. Change it, and send it again.")


def _numbers(error: QuestionTooLongError | AnswerTooLongError) -> dict[str, str]:
    numbers = {"needed": error.needed, "limit": error.limit, "beside": getattr(error, "beside", 0)}
    return {name: formats.number_format(number, force_grouping=True) for name, number in numbers.items()}
