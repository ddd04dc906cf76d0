"""
pydantic-ai's conversations in the site's database.

From the bottom up: ``messages`` are requests and responses, ``entries`` those that are stored, ``records`` what there
is of a conversation beside them, ``writing`` changes both, and the ``store`` is what pydantic-ai is given.
"""

try:
    import pydantic_ai.conversation_store  # noqa: F401  # what is missing is said here
except ModuleNotFoundError as exc:
    raise ImportError(
        "DjangoConversationStore requires pydantic-ai: pip install 'chatmemory_django[pydantic-ai]'."
    ) from exc

from chatmemory_django.integrations.pydantic_ai.messages import from_pydantic_ai, to_pydantic_ai
from chatmemory_django.integrations.pydantic_ai.store import DjangoConversationStore

__all__ = ["DjangoConversationStore", "from_pydantic_ai", "to_pydantic_ai"]
