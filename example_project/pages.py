"""What the site adds to the chat page, and the documentation of the API."""

from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from drf_spectacular.views import SpectacularSwaggerSplitView

from example_project.backends import DEMO
from example_project.llm import IS_REAL, model
from example_project.policy import DOCUMENTATION_POLICY


def about(request: HttpRequest) -> dict[str, Any]:
    """Return the name of the model and, with ``DEBUG``, of the demo user: a context processor."""
    name = getattr(model, "model_name", getattr(model, "name", ""))
    return {"model": name, "is_real": IS_REAL, "offered": DEMO if settings.DEBUG else ""}


def documentation(request: HttpRequest) -> HttpResponseBase:
    """Render the REST API's documentation, whose scripts are not inline."""
    response: HttpResponseBase = SpectacularSwaggerSplitView.as_view(url_name="schema")(request)
    response.headers["Content-Security-Policy"] = DOCUMENTATION_POLICY
    return response
