"""Tokens for apps and services, which end: those of Django REST framework are valid for ever by themselves."""

from datetime import timedelta

from django.contrib.auth.models import AbstractBaseUser
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework.authtoken.models import Token
from rest_framework.authtoken.views import ObtainAuthToken
from rest_framework.request import Request
from rest_framework.response import Response

from chatmemory_django.access import AccessPolicy

AGE = timedelta(days=90)
"""How long a token is valid."""


class SitePolicy(AccessPolicy):
    """The policy of the site: a token that is too old is none."""

    def user_of_token(self, key: str) -> AbstractBaseUser | None:
        user = super().user_of_token(key)
        is_valid = user is not None and Token.objects.filter(key=key, created__gt=timezone.now() - AGE).exists()
        return user if is_valid else None


class TokenView(ObtainAuthToken):
    """Tokens for apps and services."""

    @extend_schema("token_create", tags=["tokens"], summary="Exchange a user name and a password for a token", auth=[])
    def post(self, request: Request, *args: object, **kwargs: object) -> Response:
        """Return the token of a user. It is valid for 90 days; send it as `Authorization: Bearer …`."""
        serializer = self.get_serializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        user = serializer.validated_data["user"]
        Token.objects.filter(user=user, created__lte=timezone.now() - AGE).delete()
        return Response({"token": Token.objects.get_or_create(user=user)[0].key})
