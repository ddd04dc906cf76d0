"""The template tag of the chat."""
