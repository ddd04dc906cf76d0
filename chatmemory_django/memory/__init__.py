"""
Memories: the messages of a conversation that fit a window, kept in a store.

After ``add`` and ``set`` the store's memory holds at most what fits the window, and ``messages`` returns at most that.
All of them evaluate a dynamic limit each time. The rules are those of LangChain4j's windows; see ``core.windows``.
"""

from chatmemory_django.core.clearing import ClearToolResults
from chatmemory_django.memory.base import ChatMemory, Limit, MemoryOptions
from chatmemory_django.memory.summarizing import SummarizingChatMemory
from chatmemory_django.memory.turns import Turn
from chatmemory_django.memory.windows import MessageWindowChatMemory, TokenWindowChatMemory

__all__ = [
    "ChatMemory",
    "ClearToolResults",
    "Limit",
    "MemoryOptions",
    "MessageWindowChatMemory",
    "SummarizingChatMemory",
    "TokenWindowChatMemory",
    "Turn",
]
