"""The paths of the API: ``path("chat/", include("chatmemory_django.rest.urls"))``."""

from django.apps import apps
from django.urls import re_path
from django.utils.module_loading import import_string
from rest_framework.routers import Route, SimpleRouter

from chatmemory_django.rest.conversations import ConversationViewSet
from chatmemory_django.rest.messages import MessageViewSet
from chatmemory_django.rest.root import RootView, SearchView, StorageView
from chatmemory_django.rest.transfer import ImportView

app_name = "chatmemory"


class ChatMemoryRouter(SimpleRouter):
    """
    A router whose trailing slashes are optional, and with DELETE on lists.

    A POST without the slash would otherwise be redirected, and become a GET without its body.
    """

    routes = [  # noqa: RUF012  # as DRF declares it
        route._replace(mapping={**route.mapping, "delete": "bulk_destroy"})
        if isinstance(route, Route) and not route.detail
        else route
        for route in SimpleRouter.routes
    ]

    def __init__(self) -> None:
        super().__init__()
        self.trailing_slash = "/?"


router = ChatMemoryRouter()
router.register("conversations", ConversationViewSet, basename="conversation")
router.register(r"conversations/(?P<memory_id>[^/]+)/messages", MessageViewSet, basename="message")

urlpatterns = [
    re_path("^$", RootView.as_view(), name="root"),
    *router.urls,
    re_path(r"^messages/?$", SearchView.as_view(), name="search"),
    re_path(r"^storage/?$", StorageView.as_view(), name="storage"),
    re_path(r"^import/?$", ImportView.as_view(), name="import"),
    *(import_string("chatmemory_django.chat.rest.urlpatterns") if apps.is_installed("chatmemory_django.chat") else ()),
]
