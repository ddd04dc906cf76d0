"""The Content-Security-Policy of all pages, the admin's included. Django 6.0 has middleware for it, 5.2 has none."""

from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.deprecation import MiddlewareMixin

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self'; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Pages load nothing from other sites, and inline scripts and styles are forbidden."""

DOCUMENTATION_POLICY = POLICY.replace("style-src 'self'", "style-src 'self' 'unsafe-inline'").replace(
    "img-src 'self'", "img-src 'self' data:"
)
"""Swagger UI sets styles and has its icons in them."""


class ContentSecurityPolicyMiddleware(MiddlewareMixin):
    """Set ``POLICY`` on responses that have no policy of their own."""

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        """See Django's middleware. Error pages of ``DEBUG`` need their inline styles and scripts."""
        if not (settings.DEBUG and response.status_code >= 400):
            response.headers.setdefault("Content-Security-Policy", POLICY)
        return response
