"""The clusters: PostgreSQL under Patroni behind HAProxy and PgBouncer, and MariaDB with Galera behind HAProxy."""

from __future__ import annotations

import http.server
import json
import random
import subprocess
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.cluster.network import NODES, Node, network
from benchmarks.soak.servers import LEVELS, MariaDb, PostgreSql, Server, binary, give, process, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

START_SECONDS = 90
"""The seconds that a cluster may take to start."""

AWAY_SECONDS = 25
"""The seconds for which a node is away; they are more than those after which Patroni replaces a primary."""

FAILURES = (
    (0, "killed"),
    (1, "killed"),
    (0, "cut off from the other nodes"),  # but not from the clients
    (1, "cut off"),
    (0, "cut off"),
)
"""What happens to which node, in turn: to the one that takes the writes (0), or another (1)."""

PATRONI = "patroni[etcd3,psycopg3]~=4.1"

HAPROXY = """
global
    maxconn 500
defaults
    mode tcp
    timeout connect 2s
    timeout client 60s
    timeout server 60s
    default-server inter 1s fall 2 rise 1 on-marked-down shutdown-sessions
listen cluster
    bind 127.0.0.1:{port}
    balance {balance}
    option httpchk GET {path}
    http-check expect status 200
"""


class Cluster(Server):
    """Three nodes behind HAProxy. The way in which one fails is another one each time."""

    user = ""
    roles = ("", "")
    """What the node that takes the writes is called, and what the others are."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.random = random.Random(1)
        self.nodes: list[Node] = []
        self.failures: list[str] = []
        """What was done, to which node."""
        self.on_ready: Callable[[], object] = lambda: None
        """Called once the database is there."""
        self._timers: list[threading.Timer] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        self.folder.chmod(0o755)
        with ExitStack() as stack:
            self.nodes = stack.enter_context(network(self.folder))
            for node in self.nodes:
                give(node.folder, self.user)
            self._start_all(stack)
            configuration = self.folder / "haproxy.cfg"
            configuration.write_text(self.haproxy())
            stack.enter_context(process([binary("haproxy"), "-f", configuration], "root", self.folder / "haproxy.log"))
            wait_for(self.port)
            self._when_whole()
            stack.callback(self.settle)
            yield

    def cut(self) -> None:
        with suppress(Exception):  # a node that is gone has no connections
            super().cut()

    def restart(self) -> None:
        """Let a node fail, in one of the ways that there are, and come back after a while."""
        if not self.failures:
            self.on_ready()
        leader = self._when_whole()
        place, way = FAILURES[len(self.failures) % len(FAILURES)]
        others = [node for node in self.nodes if node is not leader]
        node = self.random.choice(others) if place else leader
        self.failures.append(f"{self.roles[place]} {way}")
        print(f"  {time.strftime('%X')} {node.name}, {self.failures[-1]}", flush=True)
        match way:
            case "killed":
                node.kill()
                back = partial(self.start_node, node)
            case "cut off":
                node.connect(is_connected=False)
                back = partial(node.connect, is_connected=True)
            case _:
                node.part(others)
                back = partial(node.join, others)
        self._timers.append(threading.Timer(AWAY_SECONDS, back))
        self._timers[-1].start()

    def settle(self) -> None:
        """Wait until the last node that failed is back."""
        for timer in self._timers:
            timer.join()

    def _when_whole(self) -> Node:
        """Return the node that leads, as soon as no node is missing."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            with suppress(Exception):  # whatever it is, it goes on until the deadline
                if (leader := self.leader()) is not None:
                    return leader
            time.sleep(0.3)
        raise TimeoutError(f"The nodes do not come together; see {self.folder}.")

    def _start_all(self, stack: ExitStack) -> None:
        raise NotImplementedError

    def start_node(self, node: Node) -> None:
        """Start what runs on *node*."""
        raise NotImplementedError

    def haproxy(self) -> str:
        """Return the configuration of HAProxy."""
        raise NotImplementedError

    def leader(self) -> Node | None:
        """Return the node that takes the writes, unless some node is missing."""
        raise NotImplementedError


class Patroni(Cluster, PostgreSql):
    """PostgreSQL on three nodes, whose primary Patroni elects; a commit waits for a quorum of the replicas."""

    label = "PostgreSQL, Patroni"
    user = "postgres"
    roles = ("primary", "replica")

    def plain(self) -> dict[str, Any]:
        return {**super().plain(), "OPTIONS": {"connect_timeout": 3}}

    def of_worker(self, number: int) -> dict[str, Any]:
        settings = super().of_worker(number)
        return {**settings, "OPTIONS": settings["OPTIONS"] | self.plain()["OPTIONS"]}

    def leader(self) -> Node | None:
        """Return the primary if both replicas follow it."""
        found = self.ask(
            "SELECT host(inet_server_addr()) FROM pg_stat_replication "
            "WHERE state = 'streaming' AND sync_state = 'quorum'",
            "postgres",
        )
        return next((node for node in self.nodes if found == [(node.address,)] * (NODES - 1)), None)

    def haproxy(self) -> str:
        servers = [f"    server {node.name} {node.address}:5432 check port 8008\n" for node in self.nodes]
        return HAPROXY.format(port=self.port, balance="first", path="/primary") + "".join(servers)

    def _start_all(self, stack: ExitStack) -> None:
        # With Debian's Python, since the user postgres may have no access to the one that runs this.
        for command in (["/usr/bin/python3", "-m", "venv", "."], ["bin/pip", "install", "-q", PATRONI]):
            subprocess.run(command, cwd=self.folder, check=True, capture_output=True)
        for node in self.nodes:
            (node.folder / "patroni.json").write_text(json.dumps(self._patroni(node)))  # JSON is YAML
        for node in self.nodes:
            self.start_node(node)
        give(self.folder, "postgres")
        stack.enter_context(
            self.bouncing("server_login_retry = 1", "server_check_delay = 0", "query_wait_timeout = 10")
        )

    def start_node(self, node: Node) -> None:
        members = ",".join(f"{each.name}=http://{each.address}:2380" for each in self.nodes)
        own = f"http://{node.address}"
        node.start(
            "postgres", binary("etcd"), "--name", node.name, "--data-dir", node.folder / "etcd", "--listen-client-urls",
            f"{own}:2379", "--advertise-client-urls", f"{own}:2379", "--listen-peer-urls", f"{own}:2380",
            "--initial-advertise-peer-urls", f"{own}:2380", "--initial-cluster", members, "--log-level", "error",
        )  # fmt: skip
        node.start("postgres", self.folder / "bin/patroni", node.folder / "patroni.json")

    def _patroni(self, node: Node) -> dict[str, Any]:
        hosts = ",".join(f"{each.address}:2379" for each in self.nodes)
        own = f"{node.address}:5432"
        parameters = {"max_connections": 100, "deadlock_timeout": "200ms", "timezone": "UTC", "fsync": "off"}
        parameters["wal_log_hints"] = "on"
        return {
            "scope": "soak",
            "name": node.name,
            "restapi": {"listen": f"{node.address}:8008", "connect_address": f"{node.address}:8008"},
            "etcd3": {"hosts": hosts},
            "bootstrap": {
                "dcs": {
                    "ttl": 20,
                    "loop_wait": 2,
                    "retry_timeout": 4,
                    "primary_start_timeout": 0,
                    "synchronous_mode": "quorum",
                    "postgresql": {"use_pg_rewind": True, "parameters": parameters},
                },
                "initdb": [{"encoding": "UTF8"}, {"auth": "trust"}, "no-sync"],
            },
            "postgresql": {
                "listen": own,
                "connect_address": own,
                "data_dir": str(node.folder / "data"),
                "bin_dir": str(Path(binary("initdb")).resolve().parent),
                "parameters": {"unix_socket_directories": str(node.folder)},
                "pg_hba": [
                    "local all all trust",
                    "host all all 0.0.0.0/0 trust",
                    "host replication all 0.0.0.0/0 trust",
                ],
                "authentication": {
                    "superuser": {"username": "postgres", "password": "x"},
                    "replication": {"username": "replicator", "password": "x"},
                },
            },
        }


class Galera(Cluster, MariaDb):
    """MariaDB on three nodes, to one of which all clients write; another one takes over."""

    label = "MariaDB, Galera, one writer"
    user = "mysql"
    roles = ("writer", "other node")
    writes_everywhere = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.checks: dict[Node, int] = {}
        """The port on which HAProxy asks whether a node is ready."""

    def plain(self) -> dict[str, Any]:
        # A read waits for what the other nodes have committed.
        return {
            **super().plain(),
            "OPTIONS": {"connect_timeout": 3, "init_command": "SET SESSION wsrep_sync_wait = 7"},
        }

    def of_worker(self, number: int) -> dict[str, Any]:
        options = {"isolation_level": LEVELS[1 + number % 2]}
        return {**self.plain(), "OPTIONS": self.plain()["OPTIONS"] | options}

    def is_dirty(self, number: int) -> bool:
        return False

    def leader(self) -> Node | None:
        """Return the node that takes the writes if all nodes are ready."""
        return self.nodes[0] if all(map(self.is_ready, self.nodes)) else None

    def is_ready(self, node: Node) -> bool:
        """Return whether *node* is in the part of the cluster that has the majority."""
        with suppress(Exception):
            rows = self.ask("SHOW STATUS LIKE 'wsrep_ready'", "mysql", host=node.address, port=3306)
            return rows[0][1] == "ON"
        return False

    def haproxy(self) -> str:
        servers = []
        for node, port in self.checks.items():
            backup = "" if self.writes_everywhere or node is self.nodes[0] else " backup"
            servers.append(f"    server {node.name} {node.address}:3306 check addr 127.0.0.1 port {port}{backup}\n")
        balance = "roundrobin" if self.writes_everywhere else "first"
        return HAPROXY.format(port=self.port, balance=balance, path="/") + "".join(servers)

    def _start_all(self, stack: ExitStack) -> None:
        users = self.folder / "users.sql"
        users.write_text("FLUSH PRIVILEGES;\nGRANT ALL ON *.* TO root@'%' IDENTIFIED BY '' WITH GRANT OPTION;\n")
        for node in self.nodes:
            command = [binary("mariadb-install-db"), "--no-defaults", f"--datadir={node.folder / 'data'}"]
            command += [f"--tmpdir={node.folder}"]
            node.start(
                "mysql", *command, "--auth-root-authentication-method=normal", "--skip-test-db", f"--extra-file={users}"
            )
        for node in self.nodes:
            node.running.pop().wait()
        self.start_node(self.nodes[0], "--wsrep-new-cluster")
        self._wait_for(self.nodes[0])
        for node in self.nodes[1:]:
            self.start_node(node)
            self._wait_for(node)
        for node in self.nodes:
            checks = _checks(partial(self.is_ready, node))
            self.checks[node] = checks.server_port
            threading.Thread(target=checks.serve_forever, daemon=True).start()
            stack.callback(checks.shutdown)

    def _wait_for(self, node: Node) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self.is_ready(node):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{node.name} does not start; see {node.folder / 'log'}.")
            time.sleep(0.3)

    def start_node(self, node: Node, *options: str) -> None:
        peers = ",".join(each.address for each in self.nodes)
        node.start(
            "mysql", binary("mariadbd"), "--no-defaults", f"--datadir={node.folder / 'data'}",
            f"--tmpdir={node.folder}",
            f"--socket={node.folder / 'socket'}", f"--pid-file={node.folder / 'pid'}", f"--bind-address={node.address}",
            "--innodb-lock-wait-timeout=3", "--innodb-autoinc-lock-mode=2", "--innodb-flush-log-at-trx-commit=2",
            "--character-set-server=utf8mb4", "--binlog-format=ROW", "--wsrep-on=ON", "--skip-name-resolve",
            "--wsrep-provider=/usr/lib/galera/libgalera_smm.so", f"--wsrep-cluster-address=gcomm://{peers}",
            f"--wsrep-node-address={node.address}", f"--wsrep-node-name={node.name}", "--wsrep-sst-method=rsync",
            "--wsrep-provider-options=gcache.size=256M",
            *options,
        )  # fmt: skip


class GaleraEverywhere(Galera):
    """The same, with writers on all nodes."""

    label = "MariaDB, Galera, three writers"
    roles = ("writer", "other writer")
    writes_everywhere = True


def _checks(is_ready: Callable[[], bool]) -> http.server.HTTPServer:
    """Return a server that reports by its status whether a node is ready, as Galera's ``clustercheck`` does."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the name that http.server calls
            with suppress(ConnectionError):  # HAProxy does not wait for long
                self.send_response(200 if is_ready() else 503)
                self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    return http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)


CLUSTERS = {"patroni": Patroni, "galera": Galera, "galera-everywhere": GaleraEverywhere}
