"""What the chat adds to the REST API: ``rest.urls`` includes it where the chat's app is installed."""

from django.urls import re_path

from chatmemory_django.chat.approvals.rest import ApprovalViewSet
from chatmemory_django.chat.costs.rest import UsageView
from chatmemory_django.chat.people.rest import PeopleViewSet, QueueView

CONVERSATION = r"^conversations/(?P<memory_id>[^/]+)"

urlpatterns = [
    re_path(
        f"{CONVERSATION}/approvals/?$",
        ApprovalViewSet.as_view({"get": "approvals", "post": "decide"}),
        name="conversation-approvals",
    ),
    re_path(
        f"{CONVERSATION}/approvals/(?P<approval>[^/]+)/person/?$",
        PeopleViewSet.as_view({"put": "assign", "delete": "unassign"}),
        name="conversation-approval-person",
    ),
    re_path(
        f"{CONVERSATION}/person/?$",
        PeopleViewSet.as_view({"put": "take", "delete": "give_back"}),
        name="conversation-person",
    ),
    re_path(f"{CONVERSATION}/answers/?$", PeopleViewSet.as_view({"post": "answer"}), name="conversation-answers"),
    re_path(r"^queue/?$", QueueView.as_view(), name="queue"),
    re_path(r"^usage/?$", UsageView.as_view(), name="usage"),
]
