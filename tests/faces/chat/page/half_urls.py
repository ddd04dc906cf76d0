"""A site that includes the page alone."""

from django.urls import include, path

from chatmemory_django.chat.page.urls import page

urlpatterns = [path("talk/", include(page))]
