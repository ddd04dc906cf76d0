"""Answers in progress: the tasks, their leases, and their streams in the database or in Redis."""
