"""
The URLs of the chat, for ``path("api/chat", include("chatmemory_django.chat.urls"))``.

They have no trailing slash, since the AI SDK does not add one to the URL that it is given.
"""

from django.urls import path, re_path

from chatmemory_django.chat.http import views

app_name = "chatmemory_chat"

# An id can contain a slash, which clients encode and servers decode before Django sees the path.
urlpatterns = [
    path("", views.chat, name="chat"),
    re_path(r"^[/]?(?P<chat_id>.+)/stream$", views.stream, name="stream"),
    re_path(r"^[/]?(?P<chat_id>.+)/stop$", views.stop, name="stop"),
    re_path(r"^[/]?(?P<chat_id>.+)/rating$", views.rating, name="rating"),
    re_path(r"^[/]?(?P<chat_id>.+)/messages$", views.messages, name="messages"),
    re_path(r"^[/]?(?P<chat_id>.+)/files/(?P<sequence>[0-9]{1,10})/(?P<index>[0-9]{1,10})$", views.file, name="file"),
]
