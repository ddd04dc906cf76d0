"""The router of docs/read-replicas.md, with servers whose replicas lag on purpose."""

import os
import subprocess
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from benchmarks.soak.servers import as_user, binary, give, process, wait_for
from tests.acceptance.docs.pages import block_of, site
from tests.ports import free_port

__all__ = ["site"]  # a fixture

LAGS = {"postgresql": ("pg_wal_replay_pause()", "pg_wal_replay_resume()"), "mysql": ("STOP SLAVE", "START SLAVE")}

CODE = """
import time
from django.core.cache import cache
from django.db import connections
from django.test import Client

def lag(statement):
    with connections["replica"].cursor() as cursor:
        cursor.execute(statement if vendor == "mysql" else f"SELECT {statement}")

def caught_up(user):
    until = time.monotonic() + 30
    while not has_all(user.pk):
        assert time.monotonic() < until
        time.sleep(0.05)

def listed(client):
    return [each["memory_id"] for each in client.get("/api/conversations/").json()["results"]]

def reads(client, read=listed, table="chatmemory_conversation"):
    seen = []
    def note(execute, sql, params, many, context):
        seen.append(table in sql)
        return execute(sql, params, many, context)
    with connections["replica"].execute_wrapper(note):
        result = read(client)
    return result, any(seen)

def used(client):
    [row] = client.get("/api/usage/?by=purpose").json()["results"]
    return row["calls"]

from chatmemory_django.chat.costs.calls import record_call
from replicas import has_all, note_write
vendor = connections["default"].vendor
anna, bert = (get_user_model().objects.create_superuser(name) for name in ("anna", "bert"))
clients = {user: Client() for user in (anna, bert)}
for user, client in clients.items():
    client.force_login(user)
get_chat_memory("first", owner=anna).add(UserMessage("Hello"))
caught_up(anna)
assert reads(clients[anna]) == (["first"], True)
with record_call("other", "model", owner=anna):
    pass
note_write(anna.pk)
caught_up(anna)
assert reads(clients[anna], used, "chatmemory_chat_modelcall") == (1, True)

lag(stop)
get_chat_memory("second", owner=anna).add(UserMessage("Hi"))
assert not has_all(anna.pk)
assert reads(clients[anna]) == (["second", "first"], False)
assert reads(clients[anna], used, "chatmemory_chat_modelcall") == (1, False)
assert clients[bert].get("/api/conversations/?owner=*").json()["results"][0]["memory_id"] == "first"
assert len(clients[anna].get("/api/conversations/second/messages/").json()["results"]) == 1
body = {"title": "A title"}
assert clients[bert].post("/api/conversations/", body, content_type="application/json").status_code == 201
assert [each["title"] for each in clients[bert].get("/api/conversations/").json()["results"]] == ["A title"]
assert reads(clients[bert])[1] is False

lag(start)
caught_up(anna)
caught_up(bert)
assert reads(clients[anna]) == (["second", "first"], True)
assert len(get_chat_memory("second", owner=anna).messages()) == 1
lag(stop)
assert clients[anna].delete("/api/conversations/first/").status_code == 204
assert reads(clients[anna]) == (["second"], False)
lag(start)
connections.close_all()
"""


def run(command: list[object], folder: Path, user: str) -> None:
    with (folder / "log").open("ab") as log:
        subprocess.run(list(map(str, command)), stdout=log, stderr=log, cwd=folder, check=True, **as_user(user))


@contextmanager
def postgresql(folder: Path) -> Iterator[tuple[int, int]]:
    give(folder, "postgres")
    ports = free_port(), free_port()
    primary, replica = folder / "primary", folder / "replica"
    run([binary("initdb"), "-D", primary, "-A", "trust", "-U", "postgres", "--no-sync"], folder, "postgres")
    with ExitStack() as stack:
        for data, port in zip((primary, replica), ports, strict=True):
            if data == replica:
                source = f"host=127.0.0.1 port={ports[0]} user=postgres"
                run([binary("pg_basebackup"), "-D", data, "-R", "-d", source, "-c", "fast"], folder, "postgres")
            command = [binary("postgres"), "-D", data, "-p", port, "-c", "listen_addresses=127.0.0.1"]
            command += ["-c", f"unix_socket_directories={folder}", "-c", "fsync=off"]
            stack.enter_context(process(command, "postgres", folder / f"{data.name}.log"))
            wait_for(port)
        yield ports


@contextmanager
def mysql(folder: Path) -> Iterator[tuple[int, int]]:
    import MySQLdb

    give(folder, "mysql")
    ports = free_port(), free_port()
    with ExitStack() as stack:
        for number, port in enumerate(ports):
            data = folder / str(number)
            install = [binary("mariadb-install-db"), "--no-defaults", f"--datadir={data}", "--skip-test-db"]
            run([*install, "--auth-root-authentication-method=normal"], folder, "mysql")
            command = [binary("mariadbd"), "--no-defaults", f"--datadir={data}", f"--port={port}"]
            command += [
                f"--socket={folder / f'socket{number}'}",
                "--bind-address=127.0.0.1",
                f"--server-id={number + 1}",
            ]
            command += [f"--log-bin={data / 'log'}", "--gtid-strict-mode", "--character-set-server=utf8mb4"]
            command += ["--innodb-flush-log-at-trx-commit=0", f"--pid-file={folder / f'pid{number}'}"]
            stack.enter_context(process(command, "mysql", folder / f"{number}.log"))
            wait_for(port)
        connection = MySQLdb.connect(host="127.0.0.1", port=ports[1], user="root")
        with connection.cursor() as cursor:
            source = f"MASTER_HOST='127.0.0.1', MASTER_PORT={ports[0]}, MASTER_USER='root'"
            cursor.execute("RESET MASTER")
            cursor.execute(f"CHANGE MASTER TO {source}, MASTER_USE_GTID=slave_pos")
            cursor.execute("START SLAVE")
        connection.close()
        connection = MySQLdb.connect(host="127.0.0.1", port=ports[0], user="root")
        connection.cursor().execute("CREATE DATABASE chat CHARACTER SET utf8mb4")
        connection.close()
        yield ports


@pytest.mark.parametrize("start", [postgresql, mysql])
def test_a_user_reads_what_they_wrote_while_the_replica_lags(site: Callable[..., None], start: Callable) -> None:
    vendor = start.__name__
    pytest.importorskip("psycopg" if vendor == "postgresql" else "MySQLdb")
    try:
        binary("initdb" if vendor == "postgresql" else "mariadb-install-db")
    except FileNotFoundError as error:
        if os.environ.get("CI"):
            raise  # the gate has the programs of both servers
        pytest.skip(str(error))
    # Not pytest's folder, which other users may not enter: the servers run as users of their own.
    with tempfile.TemporaryDirectory(prefix="replicas-") as folder, start(Path(folder)) as (primary, replica):
        name, user = ("postgres", "postgres") if vendor == "postgresql" else ("chat", "root")
        settings = f"""
            def server(port):
                return {{"ENGINE": "django.db.backends.{vendor}", "NAME": "{name}", "USER": "{user}",
                        "HOST": "127.0.0.1", "PORT": port, "CONN_MAX_AGE": None}}
            DATABASES = {{"default": server({primary}), "replica": server({replica})}}
            DATABASE_ROUTERS = ["replicas.ReplicaRouter"]
            MIDDLEWARE += ["replicas.replica_middleware"]
            ALLOWED_HOSTS = ["testserver"]
            CHATMEMORY = {{}}
        """
        stop, go = LAGS[vendor]
        code = f"stop, start = {stop!r}, {go!r}\n" + CODE
        site(textwrap.dedent(settings), code, replicas=block_of("read-replicas.md", "class ReplicaRouter"))
