"""People of the site who answer in a conversation instead of its assistant, or decide on its calls."""

from chatmemory_django.chat.people.answering import answer_as
from chatmemory_django.chat.people.tool import ask_a_person

__all__ = ["answer_as", "ask_a_person"]
