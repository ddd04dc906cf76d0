"""
Import of other frameworks' conversations, from their own tables and from their JSON.

Each framework has a module that reads its data; ``storing`` stores them. Nothing here imports a framework.
"""
