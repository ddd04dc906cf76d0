"""Triggers that record, in the transaction itself, each state of a conversation and each message.

While workers run, the triggers read and look up nothing, so no transaction waits for another because of them.
"""

from __future__ import annotations

from typing import Any

from django.db import connections

TABLES = {
    "soak_state": "conversation bigint, memory_id varchar(255), version bigint, next_sequence bigint, "
    "window_start bigint, pinned_sequence bigint, memory_messages bigint, memory_tokens bigint, "
    "counted_by varchar(64), summary_sequence bigint, parent_sequence bigint, forgotten_through bigint, "
    "total_messages bigint, pinned_count bigint",
    "soak_row": "conversation bigint, sequence bigint, type varchar(21), text {text}, payload {text}, "
    "metadata {text}, in_history {boolean}, superseded {boolean}, on_path {boolean}, parent_sequence bigint, "
    "cleared_before bigint, is_pinned {boolean}",
    "soak_change": "conversation bigint, sequence bigint, version bigint, is_deleted {boolean}, "
    "in_history {boolean}, superseded {boolean}, on_path {boolean}, parent_sequence bigint, cleared_before bigint, "
    "is_pinned {boolean}, is_empty {boolean}",
    "soak_erased": "conversation bigint, updated_at {moment}",
}
"""The columns of each table. Its key numbers the rows as they were written: a transaction can change one twice."""

STATE = (
    "INSERT INTO soak_state VALUES (NEW.id, NEW.memory_id, NEW.version, NEW.next_sequence, NEW.window_start, "
    "NEW.pinned_sequence, NEW.memory_messages, NEW.memory_tokens, NEW.counted_by, NEW.summary_sequence, "
    "NEW.parent_sequence, NEW.forgotten_through, NEW.total_messages, NEW.pinned_count)"
)
TRIGGERS = {
    ("INSERT", "chatmemory_conversation"): STATE,
    ("UPDATE", "chatmemory_conversation"): STATE,
    ("DELETE", "chatmemory_conversation"): "INSERT INTO soak_erased VALUES (OLD.id, OLD.updated_at)",
    ("INSERT", "chatmemory_message"): (
        "INSERT INTO soak_row VALUES (NEW.conversation_id, NEW.sequence, NEW.type, NEW.text, NEW.payload, "
        "NEW.metadata, NEW.in_history, NEW.superseded, NEW.on_path, NEW.parent_sequence, NEW.cleared_before, "
        "NEW.is_pinned)"
    ),
    # A write updates the conversation first, so this is the version that it makes.
    ("UPDATE", "chatmemory_message"): (
        "INSERT INTO soak_change SELECT id, NEW.sequence, version, FALSE, NEW.in_history, NEW.superseded, "
        "NEW.on_path, NEW.parent_sequence, NEW.cleared_before, NEW.is_pinned, "
        "(LENGTH(NEW.text) = 0 AND NEW.payload IS NULL AND NEW.verbatim IS NULL AND NEW.metadata IS NULL "
        "AND NEW.token_count IS NULL) "
        "FROM chatmemory_conversation WHERE id = NEW.conversation_id AND "
        "(NEW.in_history <> OLD.in_history OR NEW.superseded <> OLD.superseded OR NEW.on_path <> OLD.on_path "
        "OR COALESCE(NEW.parent_sequence, -1) <> COALESCE(OLD.parent_sequence, -1) "
        "OR COALESCE(NEW.cleared_before, -1) <> COALESCE(OLD.cleared_before, -1) OR NEW.text <> OLD.text "
        "OR NEW.is_pinned <> OLD.is_pinned)"
    ),
    ("DELETE", "chatmemory_message"): (
        "INSERT INTO soak_change SELECT id, OLD.sequence, version, TRUE, FALSE, FALSE, FALSE, NULL, NULL, FALSE, TRUE "
        "FROM chatmemory_conversation WHERE id = OLD.conversation_id"
    ),
}
TYPES = {
    "sqlite": {"text": "text", "boolean": "bool", "moment": "text"},
    "postgresql": {"text": "text", "boolean": "boolean", "moment": "timestamptz"},
    "mysql": {"text": "longtext", "boolean": "boolean", "moment": "datetime(6)"},
}
KEYS = {
    "sqlite": ("", "rowid"),
    # PostgreSQL writes wherever there is space, also before earlier rows.
    "postgresql": (", id bigserial", "id"),
    # Without a key, InnoDB numbers rows itself, and after a crash it can use a number twice.
    "mysql": (", id bigint AUTO_INCREMENT PRIMARY KEY INVISIBLE", "id"),
}
"""How each database numbers rows that an INSERT gives no number: a definition, and the name."""

FORMS = {
    "sqlite": ["CREATE TRIGGER {name} AFTER {event} ON {table} BEGIN {statement}; END"],
    "mysql": ["CREATE TRIGGER {name} AFTER {event} ON {table} FOR EACH ROW {statement}"],
    "postgresql": [
        "CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN {statement}; RETURN NULL; END'",
        "CREATE TRIGGER {name} AFTER {event} ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()",
    ],
}


def create_triggers(using: str) -> None:
    """Have the database *using* record what happens to its conversations."""
    vendor = connections[using].vendor
    with connections[using].cursor() as cursor:
        for name, columns in TABLES.items():
            cursor.execute(f"CREATE TABLE {name} ({columns.format(**TYPES[vendor])}{KEYS[vendor][0]})")
        for (event, table), statement in TRIGGERS.items():
            for form in FORMS[vendor]:
                name = f"soak_{event}_{table}".lower()
                cursor.execute(form.format(name=name, event=event, table=table, statement=statement))


def written(using: str, table: str) -> list[tuple[Any, ...]]:
    """Return everything written to *table*, in order."""
    columns = ", ".join(column.partition(" ")[0] for column in TABLES[table].split(", "))
    with connections[using].cursor() as cursor:
        cursor.execute(f"SELECT {columns} FROM {table} ORDER BY {KEYS[connections[using].vendor][1]}")
        return list(cursor.fetchall())
