"""
The URLs of the whole chat, for ``path("chat/", include("chatmemory_django.chat.page.urls"))``.

They have the page, the REST API at ``api/`` and the chat over HTTP at ``api/chat`` below. A site that includes these
two at addresses of its own includes ``chatmemory_django.chat.page.page_urls`` instead.
"""

from django.urls import include, path

# Where a site includes the last two, too, the page uses those: reverse() finds them first, by their application's name.
urlpatterns = [
    path("", include("chatmemory_django.chat.page.page_urls")),
    path("api/", include("chatmemory_django.rest.urls", namespace="chatmemory_of_page")),
    path("api/chat", include("chatmemory_django.chat.urls", namespace="chatmemory_chat_of_page")),
]
