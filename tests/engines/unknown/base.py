"""The backend: what it declares is neither PostgreSQL's nor MySQL's nor SQLite's, although it means the same."""

from typing import Any

from tests.engines.elsewhere import base


class DatabaseWrapper(base.DatabaseWrapper):
    """A connection to it."""

    display_name = "Unknown"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.data_types = {**self.data_types, "JSONField": "JSONB"}
