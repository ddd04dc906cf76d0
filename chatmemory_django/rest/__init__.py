"""The REST API. Include ``chatmemory_django.rest.urls`` in the site's URLs."""

from importlib.util import find_spec

if not all(map(find_spec, ("rest_framework", "django_filters", "drf_spectacular"))):
    raise ImportError(
        "chatmemory_django.rest requires Django REST framework, django-filter and drf-spectacular: "
        "pip install 'chatmemory_django[rest]'."
    )
