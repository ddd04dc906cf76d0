"""
The URLs of the whole chat, for ``path("chat/", include("chatmemory_django.chat.page.urls"))``.

They have the page, the REST API at ``api/`` and the chat over HTTP at ``api/chat`` below. A site that includes these
two at addresses of its own takes the page alone: ``path("chat/", include(page))``, with ``page`` of this module.
"""

from django.urls import include, path

from chatmemory_django.chat.page import views

page = (
    [
        path("", views.page, name="page"),
        path("modules/<slug:version>/<slug:name>.js", views.module, name="module"),
    ],
    "chatmemory_page",
)
"""The page and its scripts, without what they ask."""

# Where a site includes these, too, the page uses those: reverse() finds them first, by the name of their application.
urlpatterns = [
    path("", include(page)),
    path("api/", include("chatmemory_django.rest.urls", namespace="chatmemory_of_page")),
    path("api/chat", include("chatmemory_django.chat.urls", namespace="chatmemory_chat_of_page")),
]
