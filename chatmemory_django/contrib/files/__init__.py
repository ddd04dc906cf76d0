"""
Files of messages in a storage, an optional app: ``CHATMEMORY["MEDIA_STORAGE"]`` names one of Django's.

``codec`` is what the memory asks: ``marks`` has what messages keep of their files, ``models`` which files there are,
``storage`` reads and writes them, ``uploads`` are those of a write, ``completing`` puts them back, and ``releasing``
deletes those that no message has. ``moving`` and ``findings`` are what commands do.
"""
