"""OpenAI's Conversations API: ``path("openai/v1/", include("chatmemory_django.contrib.openai_api.urls"))``."""

from django.apps import apps
from django.urls import URLPattern, re_path

from chatmemory_django.contrib.openai_api.views import (
    ConversationsView,
    ConversationView,
    ItemsView,
    ItemView,
    NotFoundView,
)

app_name = "chatmemory_openai"

urlpatterns: list[URLPattern] = []

if apps.is_installed("chatmemory_django.chat"):
    from chatmemory_django.contrib.openai_api import answers, responding  # they need the tables of the chat

    urlpatterns += [
        re_path(r"^models/?$", answers.ModelsView.as_view(), name="models"),
        re_path(r"^models/(?P<model>[^/]+)/?$", answers.ModelView.as_view(), name="model"),
        re_path(r"^chat/completions/?$", answers.completions, name="completions"),
        re_path(r"^responses/?$", responding.responses, name="responses"),
        re_path(r"^responses/(?P<response_id>[^/]+)/?$", responding.response, name="response"),
        re_path(r"^responses/(?P<response_id>[^/]+)/cancel/?$", responding.cancel, name="cancel"),
        re_path(r"^responses/(?P<response_id>[^/]+)/input_items/?$", responding.input_items, name="input_items"),
    ]

urlpatterns += [
    re_path(r"^conversations/?$", ConversationsView.as_view(), name="conversations"),
    re_path(r"^conversations/(?P<memory_id>[^/]+)/?$", ConversationView.as_view(), name="conversation"),
    re_path(r"^conversations/(?P<memory_id>[^/]+)/items/?$", ItemsView.as_view(), name="items"),
    re_path(r"^conversations/(?P<memory_id>[^/]+)/items/(?P<item_id>[^/]+)/?$", ItemView.as_view(), name="item"),
    re_path("", NotFoundView.as_view()),  # responds 404 in OpenAI's format
]
