"""
Conversations that other frameworks keep, brought into the database: from their own tables, and from their JSON.

Each framework has a module that reads what it wrote; ``storing`` stores it. Nothing here imports a framework.
"""
