"""What schemathesis has to be told beside its configuration."""

import schemathesis


@schemathesis.serializer("application/jsonl")
def lines(context: schemathesis.SerializationContext, value: object) -> bytes:
    """The body of an import: text as it is."""
    return str(value).encode(errors="replace")


@schemathesis.hook
def filter_query(context: schemathesis.HookContext, query: dict[str, object] | None) -> bool:
    """Leave out parameters without a value: as HTML forms send them, they are as good as not given."""
    return "" not in (query or {}).values()
