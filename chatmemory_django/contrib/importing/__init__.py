"""
Import of other frameworks' conversations, from their own tables and from their JSON.

``frameworks`` reads what each of them has written, ``operations.import_conversations`` stores it. No framework is
imported here.
"""
