"""Ports for servers that tests start in processes of their own."""

import secrets
import socket

FIRST, LAST = 20_000, 32_767
"""Below the ports that Linux and others give to those that ask for any, such as each connection to a server."""


def free_port() -> int:
    """Return a port that nobody has, and that nobody is given before the server begins to listen."""
    while True:
        port = FIRST + secrets.randbelow(LAST - FIRST + 1)  # not with a seed, which other processes may have, too
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
