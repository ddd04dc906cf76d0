"""``manage.py runserver`` with ASGI: Django's own uses WSGI, which cannot stream answers."""

import asyncio
import logging
import socket
from typing import Any

import uvicorn
from django.conf import settings
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.contrib.staticfiles.management.commands.runserver import Command as RunserverCommand
from django.core.servers.basehttp import WSGIServer
from django.utils.module_loading import import_string

GRACE_SECONDS = 1
"""Seconds for which a server that is stopping waits for open streams."""


class UvicornServer:
    """The interface that ``runserver`` expects of a server: it listens at once, and serves when asked to."""

    def __init__(self, address: tuple[str, int], handler_class: type, ipv6: bool = False) -> None:
        self._socket = socket.create_server(address, family=socket.AF_INET6 if ipv6 else socket.AF_INET)
        self.server_port: int = self._socket.getsockname()[1]

    def set_app(self, application: Any) -> None:
        self._application = application

    def serve_forever(self) -> None:
        config = uvicorn.Config(
            self._application,
            lifespan="off",  # Django does not offer it
            log_level="warning",
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        logging.getLogger("uvicorn.error").addFilter(_is_relevant)
        with self._socket:
            uvicorn.Server(config).run(sockets=[self._socket])


def _is_relevant(record: logging.LogRecord) -> bool:
    """Return whether *record* is about anything but a stream that ends because the server stops."""
    return record.exc_info is None or not isinstance(record.exc_info[1], asyncio.CancelledError)


class Command(RunserverCommand):
    """Django's ``runserver``, with its checks, its autoreload and its static files, on uvicorn."""

    addr: str
    server_cls: type[WSGIServer] = UvicornServer  # type: ignore[assignment]  # it is used as one

    def get_handler(self, *args: Any, **options: Any) -> Any:
        application = import_string(settings.ASGI_APPLICATION)
        is_static = options["use_static_handler"] and (settings.DEBUG or options["insecure_serving"])
        return ASGIStaticFilesHandler(application) if is_static else application

    def on_bind(self, server_port: int) -> None:
        self.stdout.write(f"The site is at {self.protocol}://{self._host}:{server_port}/, until Ctrl-C.")

    @property
    def _host(self) -> str:
        return f"[{self.addr}]" if ":" in self.addr else self.addr
