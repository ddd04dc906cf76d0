"""A site that includes the page alone."""

from django.urls import include, path

urlpatterns = [path("talk/", include("chatmemory_django.chat.page.page_urls"))]
