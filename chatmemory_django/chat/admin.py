"""The chat's pages of the admin."""

from chatmemory_django.chat.costs.admin import ModelCallAdmin

__all__ = ["ModelCallAdmin"]
