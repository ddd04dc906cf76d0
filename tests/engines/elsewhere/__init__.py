"""A backend that extends Django's for PostgreSQL."""
