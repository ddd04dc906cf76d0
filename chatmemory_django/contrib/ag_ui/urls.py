"""The AG-UI protocol: ``path("api/ag-ui", include("chatmemory_django.contrib.ag_ui.urls"))``, without a slash."""

from django.urls import path, re_path

from chatmemory_django.chat.http.views import file, stop
from chatmemory_django.contrib.ag_ui.views import connect, run

app_name = "chatmemory_ag_ui"

urlpatterns = [
    path("", run, name="run"),
    re_path(r"^[/]?connect$", connect, name="connect"),
    re_path(r"^[/]?(?P<chat_id>.+)/stop$", stop, name="stop"),
    re_path(r"^[/]?(?P<chat_id>.+)/files/(?P<sequence>[0-9]{1,10})/(?P<index>[0-9]{1,10})$", file, name="file"),
]
