"""A site that includes the REST API and the chat over HTTP at addresses of its own, and the page alone."""

from django.urls import include, path

urlpatterns = [
    path("v1/memory/", include("chatmemory_django.rest.urls")),
    path("v1/chat/", include("chatmemory_django.chat.urls")),
    path("talk/", include("chatmemory_django.chat.page.page_urls")),
]
