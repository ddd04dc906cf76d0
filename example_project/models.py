"""A table of the site's own that points at messages: what people thought of an answer."""

from django.db import models

from chatmemory_django.models import Conversation, Message


class Feedback(models.Model):
    """A thumb up or down for a message."""

    conversation = models.ForeignKey(Conversation, on_delete=models.CASCADE, related_name="+")
    sequence = models.PositiveIntegerField()
    message = models.ForeignObject(
        Message,
        on_delete=models.DO_NOTHING,  # it goes with its conversation; a cascade from here would read every message
        from_fields=["conversation", "sequence"],
        to_fields=["conversation", "sequence"],
        related_name="feedback",
    )
    is_good = models.BooleanField()

    def __str__(self) -> str:
        return "good" if self.is_good else "bad"
