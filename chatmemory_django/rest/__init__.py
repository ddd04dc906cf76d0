"""The REST API: a site includes ``chatmemory_django.rest.urls``."""

from importlib.util import find_spec

if find_spec("rest_framework") is None or find_spec("drf_spectacular") is None:
    raise ImportError(
        "chatmemory_django.rest needs Django REST framework and drf-spectacular: pip install 'chatmemory_django[rest]'."
    )
