"""
The operations on conversations that the admin, the REST API and the commands share.

Conversations are processed one by one, in the order in which they were created, each completely or not at all: if an
operation is interrupted, the conversations processed so far are done and the rest are unchanged. Pruning alone handles
a long conversation in several steps, so that no writer waits for all of them; after each it is whole. Of a long one
that is erased, the messages are deleted after it, see ``models.remains``. *each* is called with every conversation, as
it was before, and with its result, inside the transaction: what *each* writes is committed together with the operation.
*refused* is called with every conversation on which the operation is not possible, and with the error; without it, the
error is raised.
"""

from chatmemory_django.operations.annotating import annotate, entitle
from chatmemory_django.operations.checking import Finding, check
from chatmemory_django.operations.clearing import clear
from chatmemory_django.operations.erasing import Receipt, erase
from chatmemory_django.operations.examining import Invariant
from chatmemory_django.operations.exporting import FORMS, asynchronous, export
from chatmemory_django.operations.forking import afork, fork
from chatmemory_django.operations.handing_over import OtherPersonError, give_back, hand_over
from chatmemory_django.operations.importing import (
    ImportConflictError,
    ImportedConversation,
    ImportedMessage,
    ImportRefusedError,
    ImportResult,
    import_conversations,
)
from chatmemory_django.operations.jsonl import (
    ConversationExistsError,
    ForbiddenTypeError,
    ImportLimits,
    JsonLinesError,
    UnexportableError,
    check_lines,
    export_lines,
    import_lines,
)
from chatmemory_django.operations.one_by_one import Each, Refused, WindowOf
from chatmemory_django.operations.rating import export_ratings, rate
from chatmemory_django.operations.recounting import NoCounterError, recount
from chatmemory_django.operations.retaining import Pruned, apply_retention, prune
from chatmemory_django.stores.base import MemoryIdTakenError

__all__ = [
    "FORMS",
    "ConversationExistsError",
    "Each",
    "Finding",
    "ForbiddenTypeError",
    "ImportConflictError",
    "ImportLimits",
    "ImportRefusedError",
    "ImportResult",
    "ImportedConversation",
    "ImportedMessage",
    "Invariant",
    "JsonLinesError",
    "MemoryIdTakenError",
    "NoCounterError",
    "OtherPersonError",
    "Pruned",
    "Receipt",
    "Refused",
    "UnexportableError",
    "WindowOf",
    "afork",
    "annotate",
    "apply_retention",
    "asynchronous",
    "check",
    "check_lines",
    "clear",
    "entitle",
    "erase",
    "export",
    "export_lines",
    "export_ratings",
    "fork",
    "give_back",
    "hand_over",
    "import_conversations",
    "import_lines",
    "prune",
    "rate",
    "recount",
]
