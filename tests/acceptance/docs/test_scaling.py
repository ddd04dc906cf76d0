"""The router of docs/scaling.md; ``tests.database.test_partitions`` has its partitions."""

import textwrap

from tests.acceptance.docs.pages import block_of, site

__all__ = ["site"]  # a fixture


def test_lists_are_read_from_the_replica_and_memories_from_the_primary(site):
    settings = (
        "DATABASES['replica'] = {**DATABASES['default'], 'NAME': 'replica.sqlite3'}\n"
        "DATABASE_ROUTERS = ['replicas.ReplicaRouter']\nMIDDLEWARE += ['replicas.replica_middleware']\n"
        "ALLOWED_HOSTS = ['testserver']\nCHATMEMORY = {}\n"
    )
    code = textwrap.dedent("""
        import shutil
        from django.db import connections
        from django.test import Client
        anna = get_user_model().objects.create_superuser("anna")
        get_chat_memory("first", owner=anna).add(UserMessage("Hello"))
        client = Client()
        client.force_login(anna)
        with connections["default"].cursor() as cursor:
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copy("default.sqlite3", "replica.sqlite3")
        get_chat_memory("first", owner=anna).add(UserMessage("Hello?"))
        get_chat_memory("second", owner=anna).add(UserMessage("Hi"))  # neither has reached the replica

        listed = client.get("/api/conversations/").json()["results"]
        assert [each["memory_id"] for each in listed] == ["first"], listed
        assert len(client.get("/api/conversations/first/messages/").json()["results"]) == 1
        assert len(client.get("/api/conversations/first/memory/").json()["messages"]) == 2
        page = client.get("/admin/chatmemory/conversation/").content.decode()
        assert "first" in page
        assert "second" not in page
        body = {"messages": [{"message": {"role": "user", "content": "again"}}]}
        url = "/api/conversations/first/messages/"
        assert client.post(url, body, content_type="application/json").status_code == 201
        assert len(get_chat_memory("first", owner=anna).messages()) == 3
    """)

    site(settings, code, replicas=block_of("scaling.md", "class ReplicaRouter"))
