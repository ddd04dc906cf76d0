"""
What happens to memories, told after it is committed.

All are sent with ``sender=Conversation``, ``conversation`` (a ``Conversation``; what else of it is needed is read when
asked for), ``sequences`` (a tuple of the places of the messages concerned) and ``using`` (the database's alias). Texts
are not sent: who needs them reads them. An error in a receiver is logged and harms neither the writer nor others.
"""

from django.dispatch import Signal

messages_added = Signal()
"""Messages were stored. Some may have been evicted at once."""

messages_evicted = Signal()
"""Messages left the memory, pushed out by others or replaced."""

memory_cleared = Signal()
"""The memory was emptied; *sequences* were in it."""
