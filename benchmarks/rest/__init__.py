"""The speed of the REST API, compared with plain views of the same rows."""
