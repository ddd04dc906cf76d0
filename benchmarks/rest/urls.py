"""The API, and the views that it is compared with."""

from __future__ import annotations

from django.urls import include, path
from rest_framework import generics, permissions, serializers, views
from rest_framework.response import Response

from chatmemory_django.models import Conversation, Message


class PlainSerializer(serializers.ModelSerializer[Message]):
    """The serializer that a site would write first."""

    class Meta:
        model = Message
        exclude = ("conversation",)


class PlainView(generics.ListAPIView[Message]):
    """The same rows with nothing but DRF."""

    permission_classes = (permissions.IsAuthenticated,)
    serializer_class = PlainSerializer
    pagination_class = None

    def get_queryset(self):  # type: ignore[no-untyped-def]
        """Return the rows of the memory of the user's conversation."""
        conversations = Conversation.objects.owned_by(self.request.user)
        return generics.get_object_or_404(conversations, memory_id="memory").memory()


class BareView(views.APIView):
    """A view that only authenticates."""

    permission_classes = (permissions.IsAuthenticated,)

    def get(self, request):  # type: ignore[no-untyped-def]
        """Return nothing."""
        return Response({})


urlpatterns = [
    path("api/", include("chatmemory_django.rest.urls")),
    path("plain/", PlainView.as_view()),
    path("bare/", BareView.as_view()),
]
