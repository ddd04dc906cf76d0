"""A model of the site itself with a foreign key to messages: users' ratings of answers."""

from django.db import models

from chatmemory_django.models import Conversation, Message


class Feedback(models.Model):
    """A thumbs up or down for a message."""

    conversation = models.ForeignKey(Conversation, on_delete=models.CASCADE, related_name="+")
    sequence = models.PositiveIntegerField()
    message = models.ForeignObject(
        Message,
        on_delete=models.DO_NOTHING,  # deleted with its conversation; a cascade from here would query every message
        from_fields=["conversation", "sequence"],
        to_fields=["conversation", "sequence"],
        related_name="feedback",
    )
    is_good = models.BooleanField()

    def __str__(self) -> str:
        return "good" if self.is_good else "bad"
