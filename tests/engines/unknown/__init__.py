"""A backend whose SQL is not known."""
