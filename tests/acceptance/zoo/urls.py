"""The URLs of all sites of the zoo: every face of the package, and what the site has besides."""

from django.conf import settings
from django.contrib import admin
from django.http import HttpResponse
from django.middleware.csrf import get_token
from django.urls import include, path
from drf_spectacular.views import SpectacularAPIView


def page(request):
    """Return the CSRF token, as the template of a page has it."""
    return HttpResponse(get_token(request))


urlpatterns = [
    path("page/", page),
    path("admin/", admin.site.urls),
    path("api/chat", include("chatmemory_django.chat.urls")),
    path("api/schema/", SpectacularAPIView.as_view(), name="schema"),
    path(settings.ZOO.rest, include("chatmemory_django.rest.urls")),
    path("openai/v1/", include("chatmemory_django.contrib.openai_api.urls")),
    *(path(route, include(urls)) for route, urls in settings.ZOO.urls),
]
