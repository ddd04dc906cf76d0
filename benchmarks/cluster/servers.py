"""The clusters: PostgreSQL under Patroni behind HAProxy and PgBouncer, and MariaDB with Galera behind HAProxy."""

from __future__ import annotations

import http.server
import json
import random
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.cluster.network import Node, network
from benchmarks.soak.servers import LEVELS, Server, binary, free_port, give, process, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

START_SECONDS = 90
"""The seconds that a cluster may take to start."""

AWAY_SECONDS = 15
"""The seconds for which a node is dead, or its cable is pulled."""

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

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port = free_port()
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
            self._wait_until_ready()
            stack.callback(self.settle)
            yield

    def restart(self) -> None:
        """Let a node fail, in one of the ways that there are, and come back after a while."""
        if not self.failures:
            self.on_ready()
        node, way = self.victim(), ("killed", "cut off")[len(self.failures) % 2]
        if node is None:
            return
        self.failures.append(f"{self.role(node)} {way}")
        print(f"  {time.strftime('%X')} {node.name}, {self.failures[-1]}", flush=True)
        if way == "killed":
            node.kill()
            back = threading.Timer(AWAY_SECONDS, self.start_node, [node])
        else:
            node.connect(is_connected=False)
            back = threading.Timer(AWAY_SECONDS, node.connect, kwargs={"is_connected": True})
        self._timers.append(back)
        back.start()

    def settle(self) -> None:
        """Wait until the last node that failed is back."""
        for timer in self._timers:
            timer.join()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.ask("SELECT 1", self.first_database)
            except Exception:  # whatever it is, it goes on until the deadline
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
            else:
                return

    first_database = ""

    def _start_all(self, stack: ExitStack) -> None:
        raise NotImplementedError

    def start_node(self, node: Node) -> None:
        """Start what runs on *node*."""
        raise NotImplementedError

    def haproxy(self) -> str:
        """Return the configuration of HAProxy."""
        raise NotImplementedError

    def victim(self) -> Node | None:
        """Return the node that fails next."""
        raise NotImplementedError

    def role(self, node: Node) -> str:
        """Return what *node* is now."""
        raise NotImplementedError

    def ask(self, statement: str, name: str = "soak") -> list[tuple[Any, ...]]:
        """Return the answer of the cluster."""
        raise NotImplementedError


class Patroni(Cluster):
    """PostgreSQL on three nodes, whose primary Patroni elects; a commit waits for a synchronous replica."""

    name = "postgresql"
    label = "PostgreSQL, Patroni"
    user = "postgres"
    first_database = "postgres"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.bounced_port = free_port()

    def plain(self) -> dict[str, Any]:
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": "soak",
            "USER": "postgres",
            "HOST": "127.0.0.1",
            "PORT": self.port,
            "OPTIONS": {"connect_timeout": 3},
        }

    def of_worker(self, number: int) -> dict[str, Any]:
        """Half of the workers through PgBouncer."""
        settings = self.plain()
        if number % 2:
            settings |= {"PORT": self.bounced_port, "DISABLE_SERVER_SIDE_CURSORS": True}
        return settings

    def prepare(self) -> None:
        self.ask("CREATE DATABASE soak", "postgres")
        self.ask("ALTER ROLE postgres SET lock_timeout = '3s'")

    def cut(self) -> None:
        with suppress(Exception):  # a primary that is gone has no connections
            self.ask(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = 'soak' AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1"
            )

    def ask(self, statement: str, name: str = "soak") -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(
            host="127.0.0.1", port=self.port, user="postgres", dbname=name, autocommit=True, connect_timeout=3
        ) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def victim(self) -> Node | None:
        """Return the primary, two times out of three."""
        with suppress(Exception):
            ((address,),) = self.ask("SELECT host(inet_server_addr())")
            primary = next(node for node in self.nodes if node.address == address)
            others = [node for node in self.nodes if node is not primary]
            self._primary = primary
            return self.random.choice(others) if len(self.failures) % 3 == 2 else primary
        return None

    def role(self, node: Node) -> str:
        return "primary" if node is self._primary else "replica"

    def haproxy(self) -> str:
        servers = [f"    server {node.name} {node.address}:5432 check port 8008\n" for node in self.nodes]
        return HAPROXY.format(port=self.port, balance="first", path="/primary") + "".join(servers)

    def _start_all(self, stack: ExitStack) -> None:
        for node in self.nodes:
            (node.folder / "patroni.json").write_text(json.dumps(self._patroni(node)))  # JSON is YAML
        for node in self.nodes:
            self.start_node(node)
        users = self.folder / "users"
        users.write_text('"postgres" ""\n')
        configuration = self.folder / "pgbouncer.ini"
        configuration.write_text(
            f"[databases]\nsoak = host=127.0.0.1 port={self.port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
            f"listen_port = {self.bounced_port}\nunix_socket_dir =\nauth_type = trust\nauth_file = {users}\n"
            "pool_mode = transaction\ndefault_pool_size = 4\nserver_login_retry = 1\nquery_wait_timeout = 10\n"
            "server_check_delay = 0\n"
        )
        give(self.folder, "postgres")
        stack.enter_context(process([binary("pgbouncer"), configuration], "postgres", self.folder / "pgbouncer.log"))

    def start_node(self, node: Node) -> None:
        members = ",".join(f"{each.name}=http://{each.address}:2380" for each in self.nodes)
        own = f"http://{node.address}"
        node.start(
            "postgres", binary("etcd"), "--name", node.name, "--data-dir", node.folder / "etcd", "--listen-client-urls",
            f"{own}:2379", "--advertise-client-urls", f"{own}:2379", "--listen-peer-urls", f"{own}:2380",
            "--initial-advertise-peer-urls", f"{own}:2380", "--initial-cluster", members, "--log-level", "error",
        )  # fmt: skip
        node.start("postgres", "/usr/bin/python3", binary("patroni"), node.folder / "patroni.json")

    def _patroni(self, node: Node) -> dict[str, Any]:
        from pathlib import Path

        hosts = ",".join(f"{each.address}:2379" for each in self.nodes)
        own = f"{node.address}:5432"
        parameters = {"max_connections": 100, "deadlock_timeout": "200ms", "timezone": "UTC", "fsync": "off"}
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
                    "synchronous_mode": True,
                    "postgresql": {"use_pg_rewind": True, "parameters": parameters},
                },
                "initdb": [{"encoding": "UTF8"}, {"auth": "trust"}, "no-sync"],
            },
            "postgresql": {
                "listen": own,
                "connect_address": own,
                "data_dir": str(node.folder / "data"),
                "bin_dir": str(Path(binary("initdb")).resolve().parent),
                "parameters": {"unix_socket_directories": str(node.folder), "wal_log_hints": "on"},
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


class Galera(Cluster):
    """MariaDB on three nodes, to one of which all clients write; another one takes over."""

    name = "mariadb"
    label = "MariaDB, Galera, one writer"
    user = "mysql"
    first_database = "mysql"
    writes_everywhere = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.checks: dict[Node, int] = {}
        """The port on which HAProxy asks whether a node is ready."""

    def plain(self) -> dict[str, Any]:
        return {
            "ENGINE": "django.db.backends.mysql",
            "NAME": "soak",
            "USER": "root",
            "HOST": "127.0.0.1",
            "PORT": self.port,
            # A read waits for what the other nodes have committed.
            "OPTIONS": {"connect_timeout": 3, "init_command": "SET SESSION wsrep_sync_wait = 7"},
        }

    def of_worker(self, number: int) -> dict[str, Any]:
        options = {"isolation_level": LEVELS[1 + number % 2]}
        return {**self.plain(), "OPTIONS": self.plain()["OPTIONS"] | options}

    def prepare(self) -> None:
        self.ask("CREATE DATABASE soak CHARACTER SET utf8mb4", "mysql")

    def cut(self) -> None:
        with suppress(Exception):
            for (connection,) in self.ask(
                "SELECT id FROM information_schema.processlist "
                "WHERE db = 'soak' AND id <> connection_id() ORDER BY rand() LIMIT 1"
            ):
                self.ask(f"KILL CONNECTION {connection}")

    def ask(self, statement: str, name: str = "soak", host: str = "127.0.0.1", port: int = 0) -> list[tuple[Any, ...]]:
        import MySQLdb

        connection = MySQLdb.connect(
            host=host, port=port or self.port, user="root", database=name, autocommit=True, connect_timeout=2,
            read_timeout=5,
        )  # fmt: skip
        try:
            cursor = connection.cursor()
            cursor.execute(statement)
            return list(cursor.fetchall())
        finally:
            connection.close()

    def victim(self) -> Node | None:
        """Return the node that takes the writes, two times out of three."""
        ready = [node for node in self.nodes if self.is_ready(node)]
        if len(ready) < len(self.nodes):
            return None
        return self.random.choice(ready[1:]) if len(self.failures) % 3 == 2 else ready[0]

    def role(self, node: Node) -> str:
        is_writer = self.writes_everywhere or node is next(filter(self.is_ready, self.nodes), None)
        return "writer" if is_writer else "another node"

    def is_ready(self, node: Node) -> bool:
        """Return whether *node* is in the part of the cluster that has the majority."""
        with suppress(Exception):
            rows = self.ask("SHOW STATUS LIKE 'wsrep_ready'", "mysql", node.address, 3306)
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
