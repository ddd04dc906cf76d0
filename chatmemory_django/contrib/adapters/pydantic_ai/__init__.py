"""
pydantic-ai's conversations in the site's database.

The layers from the bottom up: ``messages`` converts requests and responses, ``entries`` reads the stored ones,
``records`` reads the other data of a conversation, ``writing`` changes both, and ``store`` is the public class.
``recall`` has tools for earlier conversations, and ``calls`` records what calls of models used.
"""

try:
    import pydantic_ai.conversation_store  # noqa: F401  # raises ImportError if it is missing
except ModuleNotFoundError as exc:
    raise ImportError(
        "DjangoConversationStore requires pydantic-ai: pip install 'chatmemory_django[pydantic-ai]'."
    ) from exc

from chatmemory_django.contrib.adapters.pydantic_ai.calls import PydanticAiCalls
from chatmemory_django.contrib.adapters.pydantic_ai.messages import from_pydantic_ai, to_pydantic_ai
from chatmemory_django.contrib.adapters.pydantic_ai.recall import recall_toolset
from chatmemory_django.contrib.adapters.pydantic_ai.store import DjangoConversationStore

__all__ = ["DjangoConversationStore", "PydanticAiCalls", "from_pydantic_ai", "recall_toolset", "to_pydantic_ai"]
