import asyncio
import json

import pytest

from chatmemory_django.chat.model import (
    ChatRequest,
    ChatResponse,
    FinishReason,
    PartialText,
    PartialThinking,
    PartialToolCall,
    ToolChoice,
    ToolSpecification,
    UnavailableError,
)
from chatmemory_django.messages import (
    AiMessage,
    Image,
    ImageContent,
    SystemMessage,
    TextContent,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from example_project.facts import facts_in, read_summary, summarize
from example_project.parrot import Parrot
from tests.estimators import ADDITIVE_WORDS

PARROT = Parrot(ADDITIVE_WORDS, pause=0)
TOOLS = tuple(
    ToolSpecification(name)
    for name in ("get_time", "get_weather", "add", "search_conversation", "search_conversations")
)


def parrot_answer(*messages):
    """Return Parrot's answer to messages; a str is a message of the user."""
    messages = [UserMessage(each) if isinstance(each, str) else each for each in messages]
    return PARROT.chat(*messages).ai_message.text


def calls(text, **options):
    """Return the calls with which Parrot responds to *text*."""
    request = ChatRequest(messages=(UserMessage(text),), **{"tools": TOOLS, **options})
    requests = PARROT.chat(request).ai_message.tool_execution_requests
    return [(each.name, json.loads(each.arguments)) for each in requests]


class TestFacts:
    @pytest.mark.parametrize(
        ("statement", "question", "answer"),
        [
            ("My name is Ada and I like tea.", "What is my name?", "Your name is Ada."),
            ("I live in Bergen.", "Where do I live?", "You live in Bergen."),
            ("I am 36 years old", "How old am I?", "You are 36 years old."),
            ("I like tea and cake!", "What do I like?", "You like tea and cake."),
            ("My dog is called Rex.", "What's my dog called?", "Your dog is Rex."),
            ("Please remember the milk", "What did I ask you to remember?", "I should remember the milk."),
            ("Ich heiße Ada, und ich mag Tee.", "Wie heiße ich?", "Dein Name ist Ada."),
            ("Ich wohne in Zürich.", "Wo wohne ich?", "Du wohnst in Zürich."),
            ("Ich bin 36 Jahre alt.", "Wie alt bin ich?", "Du bist 36 Jahre alt."),
            ("Mein Hund heißt Rex.", "Wie heißt mein Hund?", "Zu „hund“ weiß ich: Rex."),
        ],
    )
    def test_it_knows_only_what_it_is_sent(self, statement, question, answer):
        assert parrot_answer(statement, AiMessage("Hm."), question).startswith(answer)
        assert parrot_answer(question).startswith(("I do not know", "Das weiß ich nicht"))

    def test_a_question_states_no_fact(self):
        assert facts_in([UserMessage("Is it true that my name is Bob?")]) == {}

    def test_later_facts_replace_earlier_ones_and_likings_add_up(self):
        messages = [UserMessage("My name is Ada. I like tea."), UserMessage("My name is Bea. I like cake. I like tea.")]

        assert facts_in(messages) == {"name": "Bea", "likes": "tea, cake"}

    def test_facts_in_its_own_answers_count(self):
        assert parrot_answer(AiMessage("Noted: your name is Ada."), "What is my name?").startswith("Your name is Ada.")

    def test_facts_found_by_a_search_count(self):
        found = ToolExecutionResultMessage("1", "search_conversation", "#1 USER: My name is Ada.")

        assert parrot_answer(found, "What is my name?").startswith("Your name is Ada.")

    def test_instructions_are_not_facts(self):
        assert facts_in([SystemMessage("My name is Parrot. You are 5 years old.")]) == {}

    def test_it_lists_all_it_knows(self):
        answer = parrot_answer("My name is Ada. I live in Bergen.", "What do you know about me?")

        assert "- your name is Ada\n- you live in Bergen" in answer

    def test_it_suggests_a_search_that_finds_the_fact(self):
        assert "“Search for I live in”" in parrot_answer("Where do I live?")
        assert "„Suche nach heiße“" in parrot_answer("Wie heiße ich?")


class TestHonesty:
    @pytest.mark.parametrize(
        ("question", "words"),
        [("What can you do?", "not a real LLM"), ("Was kannst du?", "kein echtes LLM"), ("Hello!", "not a real LLM"),
         ("Hallo!", "kein echtes LLM"), ("Why is the sky blue?", "not a real LLM")],
    )  # fmt: skip
    def test_it_states_that_it_is_not_a_real_llm(self, question, words):
        assert words in parrot_answer(question)

    def test_it_reports_how_many_messages_it_was_sent(self):
        assert parrot_answer("a", "b", "Hello!").endswith("(Messages that I was sent: 3.)")
        assert parrot_answer("Hallo!").endswith("(Nachrichten, die ich bekommen habe: 1.)")

    def test_it_states_that_it_cannot_see_images(self):
        message = UserMessage([TextContent("What is this?"), ImageContent(Image(url="https://example.com/a.png"))])

        assert "cannot see" in parrot_answer(message)

    def test_it_fails_on_request(self):
        with pytest.raises(UnavailableError):
            parrot_answer("Please fail!")


class TestTools:
    @pytest.mark.parametrize(
        ("text", "wanted"),
        [
            ("What time is it?", [("get_time", {})]),
            ("Wie spät ist es?", [("get_time", {})]),
            ("What is the weather like in Bergen today?", [("get_weather", {"city": "Bergen"})]),
            ("Wie ist das Wetter in Bergen?", [("get_weather", {"city": "Bergen"})]),
            ("What is 2 + 3 plus 4.5?", [("add", {"numbers": [2, 3, 4.5]})]),
            ("Search for my name.", [("search_conversation", {"text": "name"})]),
            ("Suche nach „Ich heiße“", [("search_conversation", {"text": "Ich heiße"})]),
            ("What did I tell you about tea?", [("search_conversations", {"query": "tea"})]),
            ("What did I tell you about my dog in earlier chats?", [("search_conversations", {"query": "dog"})]),
            ("Was habe ich dir über Tee erzählt?", [("search_conversations", {"query": "Tee"})]),
            ("I have 2 dogs and 3 cats.", []),
        ],
    )
    def test_it_calls_the_tool_that_a_message_asks_for(self, text, wanted):
        assert calls(text) == wanted

    def test_it_calls_several_tools_at_once_with_unique_ids(self):
        text = "What is the weather in Bergen, Oslo and Rome, and what time is it?"

        assert calls(text) == [
            ("get_time", {}),
            *(("get_weather", {"city": each}) for each in ("Bergen", "Oslo", "Rome")),
        ]
        request = ChatRequest(messages=(UserMessage(text),), tools=TOOLS)
        ids = [each.id for each in PARROT.chat(request).ai_message.tool_execution_requests]
        assert len(set(ids)) == 4
        assert ids == [each.id for each in PARROT.chat(request).ai_message.tool_execution_requests]

    def test_a_missing_or_disallowed_tool_is_not_called(self):
        assert calls("What time is it?", tools=TOOLS[1:]) == []
        assert calls("What time is it?", tool_choice=ToolChoice.NONE) == []

    def test_it_reports_the_results_of_tools(self):
        requests = [ToolExecutionRequest(str(n), "get_weather", "{}") for n in range(2)]
        messages = [
            UserMessage("What is the weather in Bergen and Atlantis?"),
            AiMessage(tool_execution_requests=requests),
            ToolExecutionResultMessage.from_request(requests[0], "Bergen: rain"),
            ToolExecutionResultMessage.from_request(requests[1], "there is no Atlantis", is_error=True),
        ]
        answer = PARROT.chat(ChatRequest(messages=tuple(messages), tools=TOOLS)).ai_message

        assert answer.tool_execution_requests == ()
        assert answer.text.startswith("Bergen: rain\n\nThat failed: there is no Atlantis\n\n")


class TestStream:
    def test_the_answer_is_streamed_word_by_word(self):
        *pieces, response = PARROT.stream("Think aloud: what can you do?")

        assert isinstance(response, ChatResponse)
        assert "".join(each.text for each in pieces if isinstance(each, PartialText)) == response.ai_message.text
        thoughts = [each.text for each in pieces if isinstance(each, PartialThinking)]
        assert "".join(thoughts) == response.ai_message.thinking
        assert all(len(each.text.split()) == 1 for each in pieces)
        assert response == PARROT.chat([UserMessage("Think aloud: what can you do?")])

    def test_calls_are_streamed_in_pieces_the_first_with_id_and_name(self):
        request = ChatRequest(
            messages=(UserMessage("What is the weather in Bergen, and what time is it?"),), tools=TOOLS
        )
        *pieces, response = PARROT.stream(request)

        assert all(isinstance(each, PartialToolCall) for each in pieces)
        for index, call in enumerate(response.ai_message.tool_execution_requests):
            first, *others = [each for each in pieces if each.index == index]
            assert (first.id, first.name) == (call.id, call.name)
            assert "".join(each.arguments for each in (first, *others)) == call.arguments
        assert response.metadata.finish_reason == FinishReason.TOOL_EXECUTION

    def test_other_tasks_run_during_an_asynchronous_stream(self):
        ran = []

        async def collect(name):
            events = []
            async for event in PARROT.astream("Count to 30"):
                ran.append(name)
                events.append(event)
            return events

        async def both():
            return await asyncio.gather(collect("a"), collect("b"))

        one, other = asyncio.run(both())

        assert one == other == list(PARROT.stream("Count to 30"))
        assert ran[:4] == ["a", "b", "a", "b"]

    def test_it_reports_its_tokens(self):
        usage = PARROT.chat([UserMessage("Hello"), UserMessage("Count to 3")]).metadata.token_usage

        assert usage.input == ADDITIVE_WORDS.estimate_token_count_in_messages(
            [UserMessage("Hello"), UserMessage("Count to 3")]
        )
        assert usage.total == usage.input + usage.output


class TestSummary:
    def test_it_keeps_the_facts_and_counts_the_messages(self):
        first = summarize(None, [UserMessage("My name is Ada."), AiMessage("Noted: your name is Ada.")])
        second = summarize(first.text, [UserMessage("I live in Bergen; my name is Bea.")])

        assert first.text == "Summary of earlier messages (2): name = Ada."
        assert second.text == "Summary of earlier messages (3): name = Bea; home = Bergen."
        assert read_summary(second.text) == second

    def test_a_summary_without_facts_has_nothing_to_remember(self):
        summary = summarize(None, [UserMessage("Hello!")])

        assert summary.text == "Summary of earlier messages (1): nothing to remember."
        assert read_summary(summary.text) == summary

    def test_a_summary_by_another_model_adds_nothing(self):
        assert summarize("They talked about tea.", [UserMessage("My name is Ada.")]).text == (
            "Summary of earlier messages (1): name = Ada."
        )

    def test_it_answers_from_a_summary(self):
        summary = summarize(None, [UserMessage("My name is Ada.")])

        assert parrot_answer(SystemMessage(summary.text), "What is my name?").startswith("Your name is Ada.")
