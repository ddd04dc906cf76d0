"""The URLs: the chat, the admin, and the REST API with its documentation."""

from django.contrib import admin
from django.contrib.auth.views import LoginView, LogoutView
from django.urls import include, path
from drf_spectacular.views import SpectacularAPIView

from example_project.pages import documentation
from example_project.tokens import TokenView

sign_in = LoginView.as_view(template_name="sign_in.html", redirect_authenticated_user=True)

urlpatterns = [
    path("", include("chatmemory_django.chat.page.urls")),
    path("sign-in/", sign_in, name="sign-in"),
    path("sign-out/", LogoutView.as_view(), name="logout"),
    path("admin/", admin.site.urls),
    path("api/", include("chatmemory_django.contrib.notes.urls")),
    path("api/ag-ui", include("chatmemory_django.contrib.ag_ui.urls")),
    path("notes/", include("chatmemory_django.contrib.notes.page.urls")),
    path("openai/v1/", include("chatmemory_django.contrib.openai_api.urls")),
    path("api/token/", TokenView.as_view()),
    path("api/schema/", SpectacularAPIView.as_view(), name="schema"),
    path("api/docs/", documentation, name="docs"),
]
