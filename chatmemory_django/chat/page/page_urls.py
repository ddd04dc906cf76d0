"""The URLs of the page and its scripts, for a site that includes the REST API and the chat over HTTP by itself."""

from django.urls import path

from chatmemory_django.chat.page import views

app_name = "chatmemory_page"

urlpatterns = [
    path("", views.page, name="page"),
    path("modules/<slug:version>/<slug:name>.js", views.module, name="module"),
]
