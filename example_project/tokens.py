"""Tokens for apps and services, which end: those of Django REST framework are valid for ever by themselves."""

from datetime import timedelta

from django.contrib.auth.models import AbstractBaseUser
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiResponse, extend_schema, inline_serializer
from rest_framework.authtoken.models import Token
from rest_framework.authtoken.views import ObtainAuthToken
from rest_framework.fields import CharField
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

    @extend_schema(
        "token_create",
        tags=["tokens"],
        summary="Exchange a user name and a password for a token",
        auth=[],
        responses={
            200: inline_serializer("Token", {"token": CharField()}),
            400: OpenApiResponse(OpenApiTypes.OBJECT, "A field is missing, or the name or the password is wrong."),
            (429, "text/plain"): OpenApiResponse(OpenApiTypes.STR, "Too many wrong passwords; wait."),
        },
        examples=[
            OpenApiExample("Ann", {"username": "ann", "password": "a secret of hers"}, request_only=True),
            OpenApiExample("A token", {"token": f"{7:040x}"}, response_only=True, status_codes=["200"]),
            OpenApiExample(
                "A wrong password",
                {"non_field_errors": ["Unable to log in with provided credentials."]},
                response_only=True,
                status_codes=["400"],
            ),
        ],
    )
    def post(self, request: Request, *args: object, **kwargs: object) -> Response:
        """Return the token of a user. It is valid for 90 days; send it as `Authorization: Bearer …`."""
        serializer = self.get_serializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        user = serializer.validated_data["user"]
        Token.objects.filter(user=user, created__lte=timezone.now() - AGE).delete()
        return Response({"token": Token.objects.get_or_create(user=user)[0].key})
