"""
What the database itself writes down, in the transaction that it is about: each state of a conversation, each message.

Nothing here is read while workers run, and the tables have no keys, so nobody waits for anybody here.
"""

from __future__ import annotations

from typing import Any

from django.db import connections

TABLES = (
    "CREATE TABLE soak_state (conversation bigint, memory_id varchar(255), version bigint, next_sequence bigint, "
    "window_start bigint, pinned_sequence bigint, memory_messages bigint, memory_tokens bigint, "
    "counted_by varchar(64))",
    "CREATE TABLE soak_row (conversation bigint, sequence bigint, type varchar(21), text {text}, payload {text}, "
    "metadata {text}, in_history {boolean}, superseded {boolean})",
    "CREATE TABLE soak_superseded (conversation bigint, sequence bigint, version bigint, is_deleted {boolean})",
    "CREATE TABLE soak_erased (conversation bigint, updated_at {moment})",
)
STATE = (
    "INSERT INTO soak_state VALUES (NEW.id, NEW.memory_id, NEW.version, NEW.next_sequence, NEW.window_start, "
    "NEW.pinned_sequence, NEW.memory_messages, NEW.memory_tokens, NEW.counted_by)"
)
TRIGGERS = {
    ("INSERT", "chatmemory_conversation"): STATE,
    ("UPDATE", "chatmemory_conversation"): STATE,
    ("DELETE", "chatmemory_conversation"): "INSERT INTO soak_erased VALUES (OLD.id, OLD.updated_at)",
    ("INSERT", "chatmemory_message"): (
        "INSERT INTO soak_row VALUES (NEW.conversation_id, NEW.sequence, NEW.type, NEW.text, NEW.payload, "
        "NEW.metadata, NEW.in_history, NEW.superseded)"
    ),
    # A write updates the conversation first, so this is the version that it makes. Where no history is kept, rows are
    # deleted where others' are superseded.
    ("UPDATE", "chatmemory_message"): (
        "INSERT INTO soak_superseded SELECT id, NEW.sequence, version, FALSE FROM chatmemory_conversation "
        "WHERE id = NEW.conversation_id AND NEW.superseded AND NOT OLD.superseded"
    ),
    ("DELETE", "chatmemory_message"): (
        "INSERT INTO soak_superseded SELECT id, OLD.sequence, version, TRUE FROM chatmemory_conversation "
        "WHERE id = OLD.conversation_id"
    ),
}
TYPES = {
    "sqlite": {"text": "text", "boolean": "bool", "moment": "text"},
    "postgresql": {"text": "text", "boolean": "boolean", "moment": "timestamptz"},
    "mysql": {"text": "longtext", "boolean": "boolean", "moment": "datetime(6)"},
}
FORMS = {
    "sqlite": ["CREATE TRIGGER {name} AFTER {event} ON {table} BEGIN {statement}; END"],
    "mysql": ["CREATE TRIGGER {name} AFTER {event} ON {table} FOR EACH ROW {statement}"],
    "postgresql": [
        "CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN {statement}; RETURN NULL; END'",
        "CREATE TRIGGER {name} AFTER {event} ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()",
    ],
}


def create_triggers(using: str) -> None:
    """Have the database *using* write down what happens to its conversations."""
    vendor = connections[using].vendor
    with connections[using].cursor() as cursor:
        for table in TABLES:
            cursor.execute(table.format(**TYPES[vendor]))
        for (event, table), statement in TRIGGERS.items():
            for form in FORMS[vendor]:
                name = f"soak_{event}_{table}".lower()
                cursor.execute(form.format(name=name, event=event, table=table, statement=statement))


def written(using: str, table: str) -> list[tuple[Any, ...]]:
    """All that was written to *table*."""
    with connections[using].cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table}")
        return list(cursor.fetchall())
