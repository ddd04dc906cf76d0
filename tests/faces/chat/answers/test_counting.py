"""What a request has in addition to what a window counts."""

import pytest

from chatmemory_django.chat.answers import sent
from chatmemory_django.chat.answers.sent import specification_tokens, thinking_tokens
from chatmemory_django.chat.costs.recording import RecordedChatModel
from chatmemory_django.chat.model import ChatModel, ChatResponse, ResponseFormat, ToolSpecification
from chatmemory_django.chat.openai import OpenAiChatModel
from chatmemory_django.chat.tools import Tool
from chatmemory_django.core.windows import Window
from chatmemory_django.messages import AiMessage, UserMessage
from tests.estimators import AdditiveWords, Words

THOUGHT = AiMessage("Yes.", "Hm, let me think.")


class Counted(AdditiveWords):
    """Keeps what it has counted."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.texts: list[str] = []

    def estimate_token_count_in_text(self, text: str) -> int:
        self.texts.append(text)
        return super().estimate_token_count_in_text(text)


class Thinker(ChatModel):
    """Is sent all thinking again."""

    asked = 0

    def do_chat(self, request):
        return ChatResponse(THOUGHT)

    def returns_thinking(self, message):
        self.asked += 1
        return True


def look(where: str) -> str:
    """Look somewhere and report what is there."""
    return where


@pytest.fixture(autouse=True)
def _nothing_is_counted_yet(monkeypatch):
    monkeypatch.setattr(sent, "_counts", {})


class TestSpecifications:
    def test_the_names_descriptions_and_parameters_of_tools_are_counted(self):
        found = Counted("a")
        tokens = specification_tokens([Tool(look).specification], None, Window(9, found))

        assert tokens == len(found.texts[0].split())
        for part in ('"look"', '"Look somewhere and report what is there."', '"where"'):
            assert part in found.texts[0]

    def test_the_schema_of_a_typed_answer_is_counted(self):
        window = Window(9, Words())
        assert specification_tokens([], ResponseFormat({"title": "one two three"}), window) == 3
        assert specification_tokens([], ResponseFormat(None), window) == 0

    def test_each_is_counted_once_in_a_process_for_estimators_of_one_name(self):
        one, same, other = Counted("a"), Counted("a"), Counted("b")
        tools = [Tool(look).specification]

        tokens = {specification_tokens(tools, None, Window(9, each)) for each in (one, same, other)}

        assert len(tokens) == 1
        assert [len(each.texts) for each in (one, same, other)] == [1, 0, 1]

    def test_counts_are_not_remembered_without_end(self, monkeypatch):
        monkeypatch.setattr(sent, "MAX_COUNTS", 3)
        window = Window(9, Counted("a"))
        for number in range(9):
            specification_tokens([ToolSpecification(f"t{number}")], None, window)
        assert len(sent._counts) <= 3

    def test_a_window_of_messages_counts_none(self):
        assert specification_tokens([Tool(look).specification], ResponseFormat({}), Window(9)) == 0


class TestThinking:
    def test_it_is_counted_if_the_model_is_sent_it_again(self):
        tokens = thinking_tokens(Thinker(), Window(9, Words()))
        assert [tokens(THOUGHT), tokens(AiMessage("Yes.")), tokens(UserMessage("Yes?"))] == [4, 0, 0]

    def test_it_is_not_if_the_model_is_not(self):
        model = OpenAiChatModel("gpt-5", api_key="unused")
        assert thinking_tokens(model, Window(9, Words()))(THOUGHT) == 0

    def test_a_recorded_model_is_sent_what_the_model_is(self):
        assert thinking_tokens(RecordedChatModel(Thinker(), "summary"), Window(9, Words()))(THOUGHT) == 4

    def test_the_model_is_asked_about_each_message_once(self):
        model = Thinker()
        tokens = thinking_tokens(model, Window(9, Words()))
        assert [tokens(THOUGHT) for _ in range(3)] == [4, 4, 4]
        assert model.asked == 1

    def test_half_a_character_is_counted_as_well(self):
        assert thinking_tokens(Thinker(), Window(9, AdditiveWords()))(AiMessage("Yes.", "Hm \ud83d")) == 2

    def test_a_window_of_messages_counts_none(self):
        assert thinking_tokens(Thinker(), Window(9))(THOUGHT) == 0
