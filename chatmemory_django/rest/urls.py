"""The paths of the API: ``path("chat/", include("chatmemory_django.rest.urls"))``."""

from django.urls import path

from chatmemory_django.rest.conversations import Conversations, OneConversation
from chatmemory_django.rest.history import Messages, OneMessage
from chatmemory_django.rest.memories import Memory
from chatmemory_django.rest.transfer import Export, Import, Usage

app_name = "chatmemory"

urlpatterns = [
    path("conversations/", Conversations.as_view(), name="conversations"),
    path("conversations/import/", Import.as_view(), name="import"),
    path("conversations/<str:memory_id>/", OneConversation.as_view(), name="conversation"),
    path("conversations/<str:memory_id>/messages/", Messages.as_view(), name="messages"),
    path("conversations/<str:memory_id>/messages/<str:sequence>/", OneMessage.as_view(), name="message"),
    path("conversations/<str:memory_id>/memory/", Memory.as_view(), name="memory"),
    path("conversations/<str:memory_id>/export/", Export.as_view(), name="export"),
    path("usage/", Usage.as_view(), name="usage"),
]
