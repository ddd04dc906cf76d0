"""The chat's tables: calls of models, approvals, runs, and the streams of answers."""

from __future__ import annotations

from chatmemory_django.chat.approvals.tables import Queue, ToolApproval
from chatmemory_django.chat.costs.tables import BudgetLock, CallSum, ModelCall, ModelCallQuerySet, Outcome, Purpose
from chatmemory_django.chat.runs.tables import AnswerChunk, Run

__all__ = [
    "AnswerChunk",
    "BudgetLock",
    "CallSum",
    "ModelCall",
    "ModelCallQuerySet",
    "Outcome",
    "Purpose",
    "Queue",
    "Run",
    "ToolApproval",
]
