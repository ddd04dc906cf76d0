"""Approvals of tool calls."""

from chatmemory_django.chat.approvals.resuming import (
    ApprovalRequested,
    ApprovalRequiredError,
    Decision,
    NotPendingError,
    Output,
    Resume,
)

__all__ = [
    "ApprovalRequested",
    "ApprovalRequiredError",
    "Decision",
    "NotPendingError",
    "Output",
    "Resume",
]
