"""The user's page of notes: ``path("notes/", include("chatmemory_django.contrib.notes.page.urls"))``."""

from django.urls import path

from chatmemory_django.contrib.notes.page.views import page

app_name = "chatmemory_notes_page"

urlpatterns = [path("", page, name="notes")]
