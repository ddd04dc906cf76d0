"""What is stored of the conversation with a site's assistant."""

from chatmemory_django.messages import ToolExecutionResultMessage
from chatmemory_django.models import Conversation


class Stored:
    """The conversation *memory_id*, as it is stored now."""

    memory_id: str

    @property
    def conversation(self):
        return Conversation.objects.get(memory_id=self.memory_id)

    @property
    def history(self):
        return [row.chat_message for row in self.conversation.history().order_by("sequence")]

    @property
    def results(self):
        return [each for each in self.history if isinstance(each, ToolExecutionResultMessage)]
