"""What one logger has logged in a test: threads that tests before have left may log, too."""

import logging

import pytest


def logged_by(caplog: pytest.LogCaptureFixture, name: str) -> list[logging.LogRecord]:
    """Return what the logger with this *name* has logged in the test itself, without its fixtures."""
    return [record for record in caplog.get_records("call") if record.name == name]
