"""Helpers shared by the admin tests: staff with given permissions, conversations, and URLs of pages."""

from collections.abc import Iterable

from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from chatmemory_django.memory import MessageWindowChatMemory, TokenWindowChatMemory
from chatmemory_django.messages import ChatMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.estimators import ADDITIVE_WORDS

EVERYTHING = (
    "view_conversation",
    "add_conversation",
    "change_conversation",
    "clear_conversation",
    "delete_conversation",
    "export_conversation",
    "recount_conversation",
    "delete_message",
    "view_message_text",
)

TOKEN_WINDOW = {
    "MEMORY": {
        "CLASS": "chatmemory_django.memory.TokenWindowChatMemory",
        "OPTIONS": {"max_tokens": 1000, "token_count_estimator": ADDITIVE_WORDS},
    }
}
MESSAGE_WINDOW = {
    "MEMORY": {
        "CLASS": "chatmemory_django.memory.MessageWindowChatMemory",
        "OPTIONS": {"max_messages": 40},
    }
}


def staff(*codenames: str, name: str = "staff") -> User:
    """Create a staff user with exactly these permissions of the app."""
    user = User.objects.create_user(name, is_staff=True)
    permissions = Permission.objects.filter(content_type__app_label__startswith="chatmemory", codename__in=codenames)
    assert len(permissions) == len(codenames)
    user.user_permissions.set(permissions)
    return user


def shown(client: Client, talk: Conversation, **query: object) -> str:
    """Return the page of a conversation as *client* sees it."""
    response = client.get(page("change", talk.pk), query)
    assert response.status_code == 200
    return response.content.decode()


def conversation(
    *messages: ChatMessage, memory_id: str = "c", owner: User | None = None, title: str = ""
) -> Conversation:
    """Create a conversation of *messages* whose memory is a window of 3 messages."""
    store = DjangoChatMemoryStore(owner=owner)
    MessageWindowChatMemory(max_messages=3, id=memory_id, store=store).add(*messages)
    return _titled(memory_id, title)


def counted(*messages: ChatMessage, memory_id: str = "c", title: str = "", max_tokens: int = 1000) -> Conversation:
    """Create a conversation of *messages*, counted in words."""
    memory = TokenWindowChatMemory(
        max_tokens=max_tokens, token_count_estimator=ADDITIVE_WORDS, id=memory_id, store=DjangoChatMemoryStore()
    )
    memory.add(*messages)
    return _titled(memory_id, title)


def long_conversation(length: int, memory_id: str = "long") -> Conversation:
    """Create a conversation of *length* short messages, the last 20 of them in its memory."""
    made = Conversation.objects.create(
        memory_id=memory_id,
        next_sequence=length + 1,
        total_messages=length,
        window_start=max(1, length - 19),
        memory_messages=min(20, length),
        memory_tokens=20 * 5,
        counted_by="words",
    )
    rows = (
        Message(
            conversation=made,
            sequence=sequence,
            type="USER" if sequence % 2 else "AI",
            text=f"message number {sequence}",
            token_count=5,
            counted_by="words",
        )
        for sequence in range(1, length + 1)
    )
    Message.objects.bulk_create(rows, batch_size=2000)
    return made


def page(name: str, *args: object) -> str:
    """Return the URL of an admin page for conversations."""
    return reverse(f"admin:chatmemory_conversation_{name}", args=args)


def post_action(client, action: str, conversations: Iterable[Conversation], **data: str):
    """Return the response to an action on *conversations* in the change list."""
    selected = {"action": action, "_selected_action": [each.pk for each in conversations], **data}
    return client.post(page("changelist"), selected)


def _titled(memory_id: str, title: str) -> Conversation:
    Conversation.objects.filter(memory_id=memory_id).update(title=title)
    return Conversation.objects.get(memory_id=memory_id)
