"""Legal holds by REST: ``path("api/", include("chatmemory_django.contrib.holds.urls"))``."""

from django.urls import re_path

from chatmemory_django.contrib.holds.rest import HoldViewSet

app_name = "chatmemory_holds"

urlpatterns = [
    re_path(r"^holds/?$", HoldViewSet.as_view({"get": "list", "post": "create"}), name="holds"),
    re_path(r"^holds/(?P<pk>[0-9]{1,18})/end/?$", HoldViewSet.as_view({"post": "end"}), name="hold-end"),
]
