"""The fixtures of the REST API."""

from tests.faces.rest.conftest import api, begin, client_of, person, small_window, writer

__all__ = ["api", "begin", "client_of", "person", "small_window", "writer"]
