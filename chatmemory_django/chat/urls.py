"""
The addresses of the chat, for ``path("api/chat", include("chatmemory_django.chat.urls"))``.

Without a slash at the end, since the AI SDK adds none to the address that it is given.
"""

from django.urls import path, re_path

from chatmemory_django.chat import views

app_name = "chatmemory_chat"

# An id may hold a slash, which a client encodes, and a server decodes before Django sees it.
urlpatterns = [
    path("", views.chat, name="chat"),
    re_path(r"^[/]?(?P<chat_id>.+)/stream$", views.stream, name="stream"),
    re_path(r"^[/]?(?P<chat_id>.+)/stop$", views.stop, name="stop"),
    re_path(r"^[/]?(?P<chat_id>.+)/messages$", views.messages, name="messages"),
]
