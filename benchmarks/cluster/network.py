"""Three nodes on this machine: network namespaces behind a bridge, each with processes and an address of its own."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from benchmarks.soak.servers import stop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BRIDGE = "chatsoak"
NETWORK = "10.77.31"
NODES = 3


class Node:
    """A machine of the cluster: what runs on it can be killed, and its cable be pulled."""

    def __init__(self, number: int, folder: Path) -> None:
        self.number = number
        self.folder = folder / f"node{number}"
        self.name = f"node{number}"
        self.address = f"{NETWORK}.{number}"
        self.namespace = f"{BRIDGE}{number}"
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, user: str, *command: object) -> None:
        """Run *command* on this node as *user*."""
        inside = ["ip", "netns", "exec", self.namespace, "setpriv", f"--reuid={user}", f"--regid={user}"]
        inside += ["--clear-groups", "env", f"HOME={self.folder}"]
        with (self.folder / "log").open("ab") as log:
            self.running.append(
                subprocess.Popen(
                    [*inside, *map(str, command)], stdout=log, stderr=log, cwd=self.folder, start_new_session=True
                )
            )

    def kill(self) -> None:
        """Kill whatever runs on this node, as if it had lost its power."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for each in self.running:
            stop(each)
        self.running.clear()

    def pids(self) -> list[int]:
        """Return the processes of this node, and no others."""
        return list(map(int, _ip("netns", "pids", self.namespace).split()))

    def connect(self, *, is_connected: bool) -> None:
        """Plug the cable in, or pull it."""
        _ip("link", "set", f"{BRIDGE}-{self.number}", "up" if is_connected else "down")

    def part(self, others: list[Node]) -> None:
        """Let nothing through between this node and *others*, while clients still reach it."""
        for each in others:
            _ip("-n", self.namespace, "route", "add", "blackhole", each.address)

    def join(self, others: list[Node]) -> None:
        """Undo :meth:`part`."""
        for each in others:
            _ip("-n", self.namespace, "route", "del", "blackhole", each.address)


@contextmanager
def network(folder: Path) -> Iterator[list[Node]]:
    """Yield the nodes, with no process on them, in a network that this machine is in as well."""
    nodes = [Node(number, folder) for number in range(1, NODES + 1)]
    _remove(nodes)
    try:
        _ip("link", "add", BRIDGE, "type", "bridge")
        _ip("addr", "add", f"{NETWORK}.254/24", "dev", BRIDGE)
        _ip("link", "set", BRIDGE, "up")
        for node in nodes:
            node.folder.mkdir()
            outside, inside = f"{BRIDGE}-{node.number}", "eth0"
            _ip("netns", "add", node.namespace)
            _ip("link", "add", outside, "type", "veth", "peer", "name", inside, "netns", node.namespace)
            _ip("link", "set", outside, "master", BRIDGE, "up")
            _ip("-n", node.namespace, "addr", "add", f"{node.address}/24", "dev", inside)
            _ip("-n", node.namespace, "link", "set", inside, "up")
            _ip("-n", node.namespace, "link", "set", "lo", "up")
        yield nodes
    finally:
        for node in nodes:
            with suppress(subprocess.CalledProcessError):
                node.kill()
        _remove(nodes)


def _remove(nodes: list[Node]) -> None:
    """Remove what a run has left; nothing else has these names."""
    for command in (*(("netns", "del", node.namespace) for node in nodes), ("link", "del", BRIDGE)):
        with suppress(subprocess.CalledProcessError):
            _ip(*command)


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout
