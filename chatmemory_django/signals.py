"""
Signals about changes of memories, of answers that wait, and of who answers, sent after the change is committed; about
reads; and about attacks.

Those of memories are sent with ``sender=Conversation``, ``conversation`` (a ``Conversation``; further fields are read
when they are accessed), ``sequences`` (a tuple of the sequences of the messages concerned) and ``using`` (the database
alias). Texts are not sent: receivers that need them read them. An exception in a receiver is logged and affects neither
the writer nor other receivers.
"""

from django.dispatch import Signal

messages_added = Signal()
"""Messages were stored. Some may have been evicted at once."""

messages_evicted = Signal()
"""Messages left the memory: they were evicted or replaced."""

memory_cleared = Signal()
"""The memory was emptied; *sequences* were in it."""

handed_over = Signal()
"""
Somebody else answers in a conversation from now on: with ``sender=Conversation``, the *conversation*, its new *state*,
a ``Conversation.State``, the key of the *person* as text, empty for nobody, and *using*.
"""

conversations_read = Signal()
"""
A user has read conversations of others, in the admin or by REST, where the setting ``LOG_READS`` is on: with
``sender=Conversation``, the *reader*, a list of these *conversations*, and the *way*: "read", "listed", "searched" or
"exported". It is sent once a request, before the response is. The admin's log is one of its receivers.
"""

security_event = Signal()
"""
What ``security.SecurityEvent`` lists has happened: with ``sender=SecurityEvent``, the *event*, the *address* that the
request came from, the primary key of the *user* and the *memory_id*, as texts, each None if it is not known. The
chat sends it in its event loop, so receivers neither wait nor use the database: they hand it on.
"""

answer_waits = Signal()
"""
An answer waits for a worker, since a question was asked or a call was decided: with ``sender=Run``, the *memory_id*,
the *context* that the setting ``THREAD_CONTEXT`` has captured, and *using*. It is sent where ``RUNS`` is ``"worker"``.
"""
