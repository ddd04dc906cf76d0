"""The signal of notes."""

from django.dispatch import Signal

notes_read = Signal()
"""
A user has read notes about others in the admin, where the setting ``LOG_READS`` is on: with ``sender=Note``, the
*reader*, a list of these *notes*, and the *way*: "read", "listed" or "searched". It is sent once a request, before the
response is. The admin's log is one of its receivers.
"""
