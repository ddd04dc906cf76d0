"""What the chat adds to the REST API: ``rest.urls`` includes it where the chat's app is installed."""

from django.urls import re_path

from chatmemory_django.chat.approvals.rest import ApprovalViewSet
from chatmemory_django.chat.costs.rest import UsageView

APPROVALS = r"^conversations/(?P<memory_id>[^/]+)/approvals/?$"

urlpatterns = [
    re_path(APPROVALS, ApprovalViewSet.as_view({"get": "approvals", "post": "decide"}), name="conversation-approvals"),
    re_path(r"^usage/?$", UsageView.as_view(), name="usage"),
]
