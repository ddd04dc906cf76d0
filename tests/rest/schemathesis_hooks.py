"""What schemathesis has to be told beside its configuration."""

import schemathesis


@schemathesis.serializer("application/jsonl")
def lines(context: schemathesis.SerializationContext, value: object) -> bytes:
    """The body of an import: text as it is."""
    return str(value).encode(errors="replace")
