"""Servers of the soak's own, on 127.0.0.1 and in a temporary folder, which can be disconnected and killed."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

LEVELS = ("read uncommitted", "read committed", "repeatable read", "serializable")
WAIT_SECONDS = 120
"""The seconds that a server may take to start or stop."""


class Server:
    """A database for a soak in *folder*. This class is for SQLite, which has no server."""

    name = "sqlite"
    label = "SQLite"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the server while the block lasts."""
        yield

    def plain(self) -> dict[str, Any]:
        """Return Django's settings for a connection as most sites have it."""
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": str(self.folder / "soak.sqlite3"),
            "OPTIONS": {
                "timeout": 20,
                "transaction_mode": "IMMEDIATE",
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
            },
        }

    def of_worker(self, number: int) -> dict[str, Any]:
        """Return Django's settings for a worker: workers connect in different ways."""
        plain = self.plain()
        if number % 4 == 3:
            plain["OPTIONS"]["transaction_mode"] = "DEFERRED"
        return plain

    def is_dirty(self, number: int) -> bool:
        """Return whether that worker sees uncommitted data."""
        return False

    def prepare(self) -> None:
        """Prepare the database before Django creates its tables."""

    def cut(self) -> None:
        """End a random connection."""

    def restart(self) -> None:
        """Kill the server, and start it again."""


class PostgreSql(Server):
    """A cluster of PostgreSQL, with PgBouncer in front of it."""

    name = "postgresql"
    label = "PostgreSQL"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port, self.bounced_port = free_port(), free_port()
        self.data = folder / "data"

    @contextmanager
    def running(self, *, fsync: bool = False) -> Iterator[None]:
        give(self.folder, "postgres")
        self._run("initdb", "-D", self.data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync")
        with (self.data / "postgresql.conf").open("a") as file:
            # Without fsync a killed server loses nothing; only a machine that is switched off does.
            file.write(
                f"port = {self.port}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = '{self.folder}'\n"
                f"fsync = {'on' if fsync else 'off'}\nmax_connections = 80\n"
                "deadlock_timeout = 200ms\ntimezone = 'UTC'\n"
            )
        self._control("start")
        try:
            with self.bouncing():
                yield
        finally:
            self._control("stop", "-m", "fast")

    def plain(self) -> dict[str, Any]:
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": "soak",
            "USER": "postgres",
            "HOST": "127.0.0.1",
            "PORT": self.port,
            "OPTIONS": {},
        }

    def of_worker(self, number: int) -> dict[str, Any]:
        """Use all isolation levels, directly and through PgBouncer; half the direct ones with server-side binding."""
        level = number % len(LEVELS)
        # Django sets the level of transactions; the role's setting is for statements outside of any.
        settings = {**self.plain(), "USER": f"soak_{level}", "OPTIONS": {"isolation_level": level + 1}}
        if number // len(LEVELS) % 2:
            return {**settings, "PORT": self.bounced_port, "DISABLE_SERVER_SIDE_CURSORS": True}
        if number % 2:
            settings["OPTIONS"] |= {"server_side_binding": True, "prepare_threshold": 5}
        return settings

    def prepare(self) -> None:
        self.ask("CREATE DATABASE soak", "postgres")
        for number, level in enumerate(LEVELS):
            self.ask(f"CREATE ROLE soak_{number} LOGIN SUPERUSER")
            self.ask(f"ALTER ROLE soak_{number} SET default_transaction_isolation = '{level}'")
            self.ask(f"ALTER ROLE soak_{number} SET lock_timeout = '3s'")

    def cut(self) -> None:
        self.ask(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = 'soak' AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1"
        )

    def restart(self) -> None:
        self._control("restart", "-m", "immediate")

    def ask(self, statement: str, name: str = "soak") -> list[tuple[Any, ...]]:
        """Return the answer of the database *name*."""
        import psycopg

        with psycopg.connect(
            host="127.0.0.1", port=self.port, user="postgres", dbname=name, autocommit=True, connect_timeout=3
        ) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def bouncing(self, *options: str) -> Iterator[None]:
        """Run PgBouncer, with *options* of its own, while the block lasts."""
        users = self.folder / "users"
        users.write_text("".join(f'"soak_{number}" ""\n' for number in range(len(LEVELS))))
        configuration = self.folder / "pgbouncer.ini"
        configuration.write_text(
            f"[databases]\nsoak = host=127.0.0.1 port={self.port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
            f"listen_port = {self.bounced_port}\nunix_socket_dir =\nauth_type = trust\nauth_file = {users}\n"
            "pool_mode = transaction\ndefault_pool_size = 2\n" + "\n".join(options)
        )
        with process([binary("pgbouncer"), configuration], "postgres", self.folder / "pgbouncer.log"):
            wait_for(self.bounced_port)
            yield

    def _control(self, action: str, *options: str) -> None:
        log = self.folder / "postgresql.log"
        self._run("pg_ctl", action, "-D", self.data, "-l", log, "-w", "-s", "-t", str(WAIT_SECONDS), *options)

    def _run(self, name: str, *arguments: object) -> None:
        command = [binary(name), *map(str, arguments)]
        # No pipe: the server would keep it open.
        with (self.folder / "commands.log").open("ab") as file:
            subprocess.run(command, stdout=file, stderr=file, cwd=self.folder, check=True, **as_user("postgres"))


class MariaDb(Server):
    """A server of MariaDB."""

    name = "mariadb"
    label = "MariaDB"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port = free_port()
        self.data = folder / "data"
        self.server: subprocess.Popen[bytes] | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        give(self.folder, "mysql")
        command = [binary("mariadb-install-db"), "--no-defaults", f"--datadir={self.data}"]
        command += ["--auth-root-authentication-method=normal", "--skip-test-db"]
        with (self.folder / "commands.log").open("ab") as file:
            subprocess.run(command, stdout=file, stderr=file, cwd=self.folder, check=True, **as_user("mysql"))
        self._start()
        try:
            yield
        finally:
            if self.server is not None:
                self.server.terminate()
                stop(self.server)

    def plain(self) -> dict[str, Any]:
        return {
            "ENGINE": "django.db.backends.mysql",
            "NAME": "soak",
            "USER": "root",
            "HOST": "127.0.0.1",
            "PORT": self.port,
            "OPTIONS": {},
        }

    def of_worker(self, number: int) -> dict[str, Any]:
        return {**self.plain(), "OPTIONS": {"isolation_level": LEVELS[number % len(LEVELS)]}}

    def is_dirty(self, number: int) -> bool:
        return LEVELS[number % len(LEVELS)] == "read uncommitted"

    def prepare(self) -> None:
        self.ask("CREATE DATABASE soak CHARACTER SET utf8mb4", "mysql")

    def cut(self) -> None:
        found = self.ask(
            "SELECT id FROM information_schema.processlist "
            "WHERE db = 'soak' AND id <> connection_id() ORDER BY rand() LIMIT 1"
        )
        for (connection,) in found:
            self.ask(f"KILL CONNECTION {connection}")

    def restart(self) -> None:
        if self.server is not None:
            self.server.kill()
            stop(self.server)
        self._start()

    def _start(self) -> None:
        command = [binary("mariadbd"), "--no-defaults", f"--datadir={self.data}", f"--port={self.port}"]
        command += [f"--socket={self.folder / 'socket'}", f"--pid-file={self.folder / 'pid'}"]
        command += ["--bind-address=127.0.0.1", "--skip-log-bin", "--innodb-lock-wait-timeout=3"]
        command += ["--innodb-autoinc-lock-mode=2"]  # the triggers number rows, and must not wait for numbers
        # Data passed to the operating system survives the server.
        command += ["--innodb-flush-log-at-trx-commit=2", "--character-set-server=utf8mb4"]
        with (self.folder / "mariadb.log").open("ab") as file:
            self.server = subprocess.Popen(
                command, stdout=file, stderr=file, cwd=self.folder, start_new_session=True, **as_user("mysql")
            )
        wait_for(self.port)

    def ask(self, statement: str, name: str = "soak", *, host: str = "127.0.0.1", port: int = 0) -> list[Any]:
        """Return the answer of the database *name*."""
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


SERVERS: dict[str, type[Server]] = {kind.name: kind for kind in (Server, PostgreSql, MariaDb)}


@contextmanager
def process(command: list[object], user: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run *command* as *user*, and end it."""
    with log.open("ab") as file:
        running = subprocess.Popen(
            list(map(str, command)), stdout=file, stderr=file, start_new_session=True, **as_user(user)
        )
    try:
        yield running
    finally:
        running.terminate()
        stop(running)


def stop(running: subprocess.Popen[bytes]) -> None:
    """Wait until it has ended; kill it if that takes long."""
    with suppress(subprocess.TimeoutExpired):
        running.wait(WAIT_SECONDS)
    if running.poll() is None:
        running.kill()
        running.wait()


def binary(name: str) -> str:
    """Return the path of the program *name*, which Debian may keep outside of PATH."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    path = os.pathsep.join([os.environ["PATH"], *map(str, places), "/usr/sbin", "/sbin"])
    found = shutil.which(name, path=path)
    if found is None:
        raise FileNotFoundError(f"The soak needs the program {name}; it is not in {path}.")
    return found


def as_user(name: str) -> dict[str, Any]:
    """Return the arguments that run a process as *name*, since no database server runs as root."""
    if os.geteuid():
        return {}
    entry = pwd.getpwnam(name)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": [], "env": {**os.environ, "HOME": "/"}}


def give(folder: Path, name: str) -> None:
    """Give *folder* to the user *name*."""
    if not os.geteuid():
        shutil.chown(folder, name)


def wait_for(port: int) -> None:
    """Wait until something listens on *port*."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return
