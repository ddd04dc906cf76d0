"""
Export and import of complete conversations as JSON lines, with only a few messages in memory at a time.

A conversation is one line, followed by a line for each of its messages, which has the codec's JSON and the columns of
the row. Invalid lines raise ``JsonLinesError``, which names the line and never repeats its content.
"""

from chatmemory_django.operations.jsonl.exporting import UnexportableError, export_lines
from chatmemory_django.operations.jsonl.importing import check_lines, import_lines
from chatmemory_django.operations.jsonl.lines import (
    ConversationExistsError,
    ForbiddenTypeError,
    ImportLimits,
    JsonLinesError,
)

__all__ = [
    "ConversationExistsError",
    "ForbiddenTypeError",
    "ImportLimits",
    "JsonLinesError",
    "UnexportableError",
    "check_lines",
    "export_lines",
    "import_lines",
]
