"""
Import of other frameworks' conversations, from their own tables and from their JSON.

``frameworks`` reads what each of them has written, ``storing`` stores it. Nothing here imports a framework.
"""
