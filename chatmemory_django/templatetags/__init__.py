"""Template libraries."""
