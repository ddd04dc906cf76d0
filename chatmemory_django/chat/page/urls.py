"""The URL of the page, for ``path("chat/", include("chatmemory_django.chat.page.urls"))``."""

from django.urls import path

from chatmemory_django.chat.page import views

app_name = "chatmemory_page"

urlpatterns = [path("", views.page, name="page")]
