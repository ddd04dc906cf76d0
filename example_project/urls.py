"""The URLs: the chat, the admin, and the REST API with its documentation."""

from django.contrib import admin
from django.contrib.auth.views import LogoutView
from django.urls import include, path
from drf_spectacular.views import SpectacularAPIView

from example_project import pages

urlpatterns = [
    path("", include("chatmemory_django.chat.page.urls")),
    path("sign-in/", pages.sign_in, name="sign-in"),
    path("sign-out/", LogoutView.as_view(), name="sign-out"),
    path("admin/login/", pages.limited(admin.site.login)),
    path("admin/", admin.site.urls),
    path("api/", include("chatmemory_django.contrib.notes.urls")),
    path("api/ag-ui", include("chatmemory_django.contrib.ag_ui.urls")),
    path("notes/", include("chatmemory_django.contrib.notes.page.urls")),
    path("openai/v1/", include("chatmemory_django.contrib.openai_api.urls")),
    path("api/token/", pages.token),
    path("api/schema/", SpectacularAPIView.as_view(), name="schema"),
    path("api/docs/", pages.documentation, name="docs"),
]
