"""
Signals about changes of memories, sent after the change is committed.

All are sent with ``sender=Conversation``, ``conversation`` (a ``Conversation``; further fields are read when they are
accessed), ``sequences`` (a tuple of the sequences of the messages concerned) and ``using`` (the database alias). Texts
are not sent: receivers that need them read them. An exception in a receiver is logged and affects neither the writer
nor other receivers.
"""

from django.dispatch import Signal

messages_added = Signal()
"""Messages were stored. Some may have been evicted at once."""

messages_evicted = Signal()
"""Messages left the memory: they were evicted or replaced."""

memory_cleared = Signal()
"""The memory was emptied; *sequences* were in it."""
