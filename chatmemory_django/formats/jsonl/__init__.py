"""
Conversations to JSON lines and back: whole, with their history and their memory, a few messages in Python at a time.

A line for each conversation, then one for each of its messages, which are the codec's JSON with what their rows say of
them. Wrong lines are a ``JsonLinesError``, which names the line and never repeats what was said.
"""

from chatmemory_django.formats.jsonl.exporting import export_lines
from chatmemory_django.formats.jsonl.importing import check_lines, import_lines
from chatmemory_django.formats.jsonl.lines import ConversationExistsError, ImportLimits, JsonLinesError

__all__ = ["ConversationExistsError", "ImportLimits", "JsonLinesError", "check_lines", "export_lines", "import_lines"]
