"""The requests that an assistant sends to its model."""

import pytest
from django.contrib.auth.models import User

from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.model import ChatModel, ChatResponse, ContextLengthError
from chatmemory_django.memory import TokenWindowChatMemory
from chatmemory_django.messages import AiMessage
from chatmemory_django.models import Message
from tests.estimators import Words

pytestmark = pytest.mark.django_db


class Parrot(ChatModel):
    def do_chat(self, request):
        return ChatResponse(AiMessage(request.messages[-1].single_text))


class TestMessagesThatDoNotFit:
    def test_a_question_larger_than_the_memory_raises(self):
        options = {"max_tokens": 50, "token_count_estimator": Words()}
        assistant = Assistant(
            Parrot(), memory=TokenWindowChatMemory, memory_options=options, system_message="Repeat it."
        )
        owner = User.objects.create_user("ann")
        assert assistant.chat("c", "one two", owner=owner) == "one two"

        with pytest.raises(ContextLengthError, match="larger window"):
            assistant.chat("c", "three " * 50, owner=owner)

        assert Message.objects.filter(text__startswith="three").count() == 0
        assert assistant.chat("c", "four", owner=owner) == "four"
