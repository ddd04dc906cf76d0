"""How quick the REST API is, beside plain views of the same rows."""
