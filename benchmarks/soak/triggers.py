"""
What the database itself writes down, in the transaction that it is about: each state of a conversation, each message.

Nothing here is read while workers run, and nothing is looked up, so nobody waits for anybody here.
"""

from __future__ import annotations

from typing import Any

from django.db import connections

TABLES = (
    "CREATE TABLE soak_state (conversation bigint, memory_id varchar(255), version bigint, next_sequence bigint, "
    "window_start bigint, pinned_sequence bigint, memory_messages bigint, memory_tokens bigint, "
    "counted_by varchar(64), summary_sequence bigint, parent_sequence bigint, forgotten_through bigint, "
    "total_messages bigint{key})",
    "CREATE TABLE soak_row (conversation bigint, sequence bigint, type varchar(21), text {text}, payload {text}, "
    "metadata {text}, in_history {boolean}, superseded {boolean}, on_path {boolean}, parent_sequence bigint{key})",
    "CREATE TABLE soak_change (conversation bigint, sequence bigint, version bigint, is_deleted {boolean}, "
    "in_history {boolean}, superseded {boolean}, on_path {boolean}, parent_sequence bigint{key})",
    "CREATE TABLE soak_erased (conversation bigint, updated_at {moment}{key})",
)
STATE = (
    "INSERT INTO soak_state VALUES (NEW.id, NEW.memory_id, NEW.version, NEW.next_sequence, NEW.window_start, "
    "NEW.pinned_sequence, NEW.memory_messages, NEW.memory_tokens, NEW.counted_by, NEW.summary_sequence, "
    "NEW.parent_sequence, NEW.forgotten_through, NEW.total_messages)"
)
TRIGGERS = {
    ("INSERT", "chatmemory_conversation"): STATE,
    ("UPDATE", "chatmemory_conversation"): STATE,
    ("DELETE", "chatmemory_conversation"): "INSERT INTO soak_erased VALUES (OLD.id, OLD.updated_at)",
    ("INSERT", "chatmemory_message"): (
        "INSERT INTO soak_row VALUES (NEW.conversation_id, NEW.sequence, NEW.type, NEW.text, NEW.payload, "
        "NEW.metadata, NEW.in_history, NEW.superseded, NEW.on_path, NEW.parent_sequence)"
    ),
    # A write updates the conversation first, so this is the version that it makes.
    ("UPDATE", "chatmemory_message"): (
        "INSERT INTO soak_change SELECT id, NEW.sequence, version, FALSE, NEW.in_history, NEW.superseded, "
        "NEW.on_path, NEW.parent_sequence FROM chatmemory_conversation WHERE id = NEW.conversation_id AND "
        "(NEW.in_history <> OLD.in_history OR NEW.superseded <> OLD.superseded OR NEW.on_path <> OLD.on_path "
        "OR COALESCE(NEW.parent_sequence, -1) <> COALESCE(OLD.parent_sequence, -1))"
    ),
    ("DELETE", "chatmemory_message"): (
        "INSERT INTO soak_change SELECT id, OLD.sequence, version, TRUE, FALSE, FALSE, FALSE, NULL "
        "FROM chatmemory_conversation WHERE id = OLD.conversation_id"
    ),
}
MYSQL_KEY = ", id bigint AUTO_INCREMENT PRIMARY KEY INVISIBLE"
"""Without a key, InnoDB gives rows numbers of its own, and after a crash it may give two rows the same."""

TYPES = {
    "sqlite": {"text": "text", "boolean": "bool", "moment": "text", "key": ""},
    "postgresql": {"text": "text", "boolean": "boolean", "moment": "timestamptz", "key": ""},
    "mysql": {"text": "longtext", "boolean": "boolean", "moment": "datetime(6)", "key": MYSQL_KEY},
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
