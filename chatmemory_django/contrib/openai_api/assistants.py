"""The models of OpenAI's API: the assistants of the site that a user may ask."""

from __future__ import annotations

from typing import Any

from django.http import Http404, HttpRequest
from rest_framework.request import Request
from rest_framework.response import Response

from chatmemory_django.access import AccessPolicy
from chatmemory_django.chat.conf import chat_settings
from chatmemory_django.contrib.openai_api.errors import RefusedRequestError
from chatmemory_django.contrib.openai_api.views import OpenAIView

DEFAULT = "assistant"
"""The model that is ``ASSISTANT``, which has no name, unless one of ``ASSISTANTS`` has this one."""


def models(policy: AccessPolicy, request: HttpRequest) -> dict[str, str]:
    """Return the names of the assistants that the user may ask, by what OpenAI's clients call them."""
    chat = chat_settings()
    names = {DEFAULT: ""} if chat.ASSISTANT is not None else {}
    names |= {name: name for name in chat.ASSISTANTS}
    return {model: name for model, name in names.items() if policy.may_ask(request, name)}


def name_of(model: str, policy: AccessPolicy, request: HttpRequest) -> str:
    """Return the name of the assistant that is *model*; ``RefusedRequestError`` if the user may not ask it."""
    found = models(policy, request).get(model)
    if found is None:
        what = f"The model {model[:64]!r} does not exist, or you may not use it; /models lists those that you may."
        raise RefusedRequestError(404, what, param="model", code="model_not_found")
    return found


def _shown(model: str) -> dict[str, Any]:
    return {"id": model, "object": "model", "created": 0, "owned_by": "site"}


class ModelsView(OpenAIView):
    """The assistants that the user may ask."""

    def get(self, request: Request) -> Response:
        """List them, the default one first."""
        found = models(self.policy, self.request)
        return Response({"object": "list", "data": [_shown(model) for model in found]})


class ModelView(OpenAIView):
    """An assistant."""

    def get(self, request: Request, model: str) -> Response:
        """Retrieve it."""
        if model not in models(self.policy, self.request):
            raise Http404
        return Response(_shown(model))
