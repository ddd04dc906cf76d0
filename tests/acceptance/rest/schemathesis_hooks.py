"""Hooks of schemathesis: what its configuration cannot express."""

import schemathesis


@schemathesis.serializer("application/jsonl")
def lines(context: schemathesis.SerializationContext, value: object) -> bytes:
    """Return the body of an import unchanged."""
    return str(value).encode(errors="replace")


@schemathesis.hook
def filter_query(context: schemathesis.HookContext, query: dict[str, object] | None) -> bool:
    """Leave out parameters without a value: as HTML forms send them, they mean the same as missing ones."""
    return "" not in (query or {}).values()
