"""Guards: what is asked and answered only as they let it pass."""

import asyncio
import json
import threading

import pytest
from django.test import RequestFactory
from django.utils.translation import gettext_lazy

from chatmemory_django.chat import assistant as assistants
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.costs.ledger import BudgetExceededError
from chatmemory_django.chat.guards import Guard, GuardRefusedError, Refuse, Retry, Rewrite
from chatmemory_django.chat.http.asking import admission, is_next
from chatmemory_django.chat.model import ChatResponse, PartialText, PartialToolCall, RateLimitError
from chatmemory_django.chat.models import Run
from chatmemory_django.messages import AiMessage, Image, ImageContent, NewMessage, TextContent, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.provider import get_chat_memory
from tests.asgi import run
from tests.faces.chat.http.test_http import ann, asynchronous, bearer, bob, chat, chunks, no_throttle, text_of, user
from tests.faces.chat.scripted import ScriptedModel, calling

__all__ = ["ann", "bob", "chat", "no_throttle"]  # fixtures

pytestmark = pytest.mark.django_db(transaction=True)

WAYS = ["chat", "achat", "stream", "astream"]


def ask(assistant: Assistant, way: str, message="Hi.", **options) -> list:
    """Ask in one *way*, and return the events, or the answer."""
    match way:
        case "chat":
            return [assistant.chat("c", message, **options)]
        case "achat":
            return [run(assistant.achat("c", message, **options))]
        case "stream":
            return list(assistant.stream("c", message, **options))

    async def all_events() -> list:
        return [event async for event in assistant.astream("c", message, **options)]

    return run(all_events())


def texts() -> list[str]:
    return [row.chat_message.text or "" for row in Message.objects.history() if row.type == "AI"]


def questions() -> list[str]:
    return [row.text for row in Message.objects.history().filter(type="USER")]


def refuses(question):
    return Refuse("Ask something else.")


async def arefuses(question):
    return Refuse("Ask something else.")


class TestQuestions:
    @pytest.mark.parametrize("guard", [refuses, arefuses])
    @pytest.mark.parametrize("persist", ["late", "early"])
    @pytest.mark.parametrize("way", WAYS)
    def test_of_one_that_is_refused_nothing_is_stored(self, way, persist, guard):
        assistant = Assistant(ScriptedModel("One."), input_guards=[guard], persist=persist)

        with pytest.raises(GuardRefusedError) as caught:
            ask(assistant, way, client_message_id="u1")

        assert caught.value.text == "Ask something else."
        assert assistant.model.requests == []
        assert not Message.objects.exists()
        assert not Conversation.objects.exists()

    @pytest.mark.parametrize("way", WAYS)
    def test_one_that_is_rewritten_is_asked_and_stored_like_that(self, way):
        guards = [lambda question: Rewrite(question.single_text.replace("4711", "****")), lambda question: None]
        assistant = Assistant(ScriptedModel("One."), input_guards=guards)

        ask(assistant, way, "My code is 4711.")

        assert assistant.model.sent == [[UserMessage("My code is ****.")]]
        assert questions() == ["My code is ****."]

    def test_each_guard_sees_what_the_one_before_has_left(self):
        seen = []
        guards = [
            lambda question: seen.append(question.single_text),
            lambda question: Rewrite("Two."),
            lambda question: seen.append(question.single_text),
        ]

        Assistant(ScriptedModel("One."), input_guards=guards).chat("c", "One.")

        assert seen == ["One.", "Two."]

    def test_files_stay_where_a_text_is_rewritten(self):
        image = ImageContent(Image("https://example.com/cat.png"))
        assistant = Assistant(ScriptedModel("One."), input_guards=[lambda question: Rewrite("Look.")])

        assistant.chat("c", UserMessage([TextContent("See my secret"), image, TextContent("here")]))

        assert assistant.model.sent == [[UserMessage([TextContent("Look."), image])]]

    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize("blank", ["", " \n", UserMessage(" "), UserMessage([TextContent(""), TextContent("\t")])])
    def test_one_that_is_rewritten_to_a_blank_text_is_refused(self, way, blank):
        model = ScriptedModel("Hello.")

        with pytest.raises(GuardRefusedError, match="has rewritten the question to a blank text"):
            ask(Assistant(model, input_guards=[lambda question: Rewrite(blank)]), way, "Dirty.")

        assert model.sent == []
        assert not Message.objects.exists()

    def test_files_are_asked_without_a_text_that_is_blank_then(self):
        model, image = ScriptedModel("Hello."), ImageContent(Image(url="https://example.com/a.png"))
        message = UserMessage([TextContent("Dirty."), image])

        Assistant(model, input_guards=[lambda question: Rewrite("")]).chat("c", message)

        assert model.sent == [[UserMessage([image])]]

    def test_one_that_was_rewritten_and_is_sent_again_is_answered_once(self):
        assistant = Assistant(ScriptedModel("One.", "Two."), input_guards=[lambda question: Rewrite("Clean.")])

        answers = [assistant.chat("c", "Dirty.", client_message_id="u1") for _ in range(2)]

        assert answers == ["One.", "One."]
        assert questions() == ["Clean."]

    def test_a_guard_is_given_what_it_names(self, ann):
        given = []

        def guard(memory_id, owner, request, question):
            given.append((memory_id, owner, request, question))

        Assistant(ScriptedModel("One."), input_guards=[guard]).chat("c", "Hi.", owner=ann)

        assert given == [("c", ann, None, UserMessage("Hi."))]

    def test_what_is_stored_already_is_not_guarded_again(self):
        memory = get_chat_memory("c")
        [sequence] = memory.add(UserMessage("Hi."))
        assistant = Assistant(ScriptedModel("One."), input_guards=[refuses])

        assert assistant.chat("c", None, after=sequence) == "One."


class TestGuardsThatFail:
    @pytest.mark.parametrize("way", WAYS)
    def test_one_that_raises_refuses(self, way, caplog):
        def raises(question):
            raise ValueError(question.single_text)

        assistant = Assistant(ScriptedModel("One."), input_guards=[raises])

        with pytest.raises(GuardRefusedError):
            ask(assistant, way, "My secret.")

        assert "ValueError" in caplog.text
        assert "secret" not in caplog.text

    def test_one_that_hangs_refuses_in_time(self):
        async def hangs(question):
            await asyncio.sleep(60)

        assistant = Assistant(ScriptedModel("One."), input_guards=[Guard(hangs, timeout=0.01)])

        with pytest.raises(GuardRefusedError):
            assistant.chat("c", "Hi.")

    def test_one_that_is_late_refuses(self):
        assistant = Assistant(
            ScriptedModel("One."),
            input_guards=[Guard(lambda question: threading.Event().wait(0.05) or None, timeout=0.01)],
        )

        with pytest.raises(GuardRefusedError):
            assistant.chat("c", "Hi.")

    def test_one_that_fails_open_lets_pass(self):
        def raises(question):
            raise ValueError

        assistant = Assistant(ScriptedModel("One."), input_guards=[Guard(raises, fails_open=True)])

        assert assistant.chat("c", "Hi.") == "One."

    @pytest.mark.parametrize(
        ("where", "verdict"),
        [
            ("input", Retry("No.")),
            ("input", True),
            ("input", Rewrite(None)),
            ("output", "No."),
            ("output", Rewrite(None)),
            ("output", Rewrite(UserMessage("No."))),
        ],
    )
    def test_what_no_guard_may_return_is_an_error_of_the_site(self, where, verdict):
        assistant = Assistant(ScriptedModel("One."), **{f"{where}_guards": [lambda question: verdict]})

        with pytest.raises(TypeError, match=f"{where}_guards: .* returned {type(verdict).__name__}"):
            assistant.chat("c", "Hi.")

    @pytest.mark.parametrize("where", ["input", "output"])
    def test_a_parameter_that_is_unknown_is_an_error_when_the_assistant_is_made(self, where):
        with pytest.raises(TypeError, match=f"{where}_guards: .* 'text'"):
            Assistant(ScriptedModel("One."), **{f"{where}_guards": [lambda text: None]})


class TestAnswers:
    @pytest.mark.parametrize("way", WAYS)
    def test_one_that_is_refused_is_neither_shown_nor_stored(self, way):
        events = []
        assistant = Assistant(ScriptedModel("The code is 4711."), output_guards=[lambda answer: Refuse()])

        with pytest.raises(GuardRefusedError):
            events += ask(assistant, way)

        assert events == []
        assert texts() == questions() == []

    def test_its_question_is_left_out_of_later_requests(self):
        model = ScriptedModel("The code is 4711.", "Hello.")
        assistant = Assistant(
            model, persist="early", output_guards=[lambda answer: Refuse() if "4711" in answer.text else None]
        )

        with pytest.raises(GuardRefusedError):
            assistant.chat("c", "Which code?")
        assistant.chat("c", "Hi.")

        assert model.sent[1] == [UserMessage("Hi.")]
        assert questions() == ["Which code?", "Hi."]

    @pytest.mark.parametrize("way", ["stream", "astream"])
    def test_nothing_is_shown_before_the_guards_have_seen_all_of_it(self, way):
        shown_before = []
        events = []

        def guard(answer):
            shown_before.append((list(events), answer.text))

        assistant = Assistant(ScriptedModel("One two three."), output_guards=[guard])
        events += ask(assistant, way)

        assert shown_before == [([], "One two three.")]
        assert "".join(event.text for event in events if isinstance(event, PartialText)).strip() == "One two three."
        assert isinstance(events[-1], ChatResponse)

    @pytest.mark.parametrize("way", WAYS)
    def test_one_that_is_rewritten_is_shown_and_stored_like_that(self, way):
        assistant = Assistant(
            ScriptedModel("The code is 4711."), output_guards=[lambda answer: Rewrite("I may not say.")]
        )

        events = ask(assistant, way)

        assert "4711" not in str(events)
        assert texts() == ["I may not say."]

    def test_a_text_that_is_translated_takes_the_place_too(self):
        verdict = Rewrite(gettext_lazy("I may not say."))
        guards = {"input_guards": [lambda question: verdict], "output_guards": [lambda answer: verdict]}

        Assistant(ScriptedModel("The code is 4711."), **guards).chat("c", "My code is 4711.")

        assert (questions(), texts()) == (["I may not say."], ["I may not say."])

    def test_of_one_that_is_rewritten_its_vendors_copy_is_not_stored(self):
        attributes = {"vendor_response": {"parts": [{"content": "The code is 4711."}]}, "annotations": ["4711"]}
        message = AiMessage("The code is 4711.", "Tell 4711?", attributes=attributes)

        Assistant(ScriptedModel(message), output_guards=[lambda answer: Rewrite("I may not say.")]).chat("c", "Hi.")

        assert [row.chat_message for row in Message.objects.history() if row.type == "AI"] == [
            AiMessage("I may not say.")
        ]

    @pytest.mark.parametrize("way", WAYS)
    def test_why_a_model_refuses_is_guarded_as_a_text_is(self, way):
        seen = []
        message = AiMessage(attributes={"refusal": "I know the code 4711."})

        def guard(answer):
            seen.append(answer.text)

        ask(Assistant(ScriptedModel(message), output_guards=[guard]), way)

        assert seen == ["I know the code 4711."]
        assert [row.chat_message for row in Message.objects.history() if row.type == "AI"] == [message]

    @pytest.mark.parametrize("way", WAYS)
    def test_the_model_is_asked_once_more_with_a_note_that_is_not_stored(self, way):
        model = ScriptedModel("The code is 4711.", "Ask at the door.")
        assistant = Assistant(
            model, output_guards=[lambda answer: Retry("Name no code.") if "4711" in answer.text else None]
        )

        events = ask(assistant, way)

        assert "4711" not in str(events)
        assert model.sent[1] == [UserMessage([TextContent("Name no code."), TextContent("Hi.")])]
        assert (questions(), texts()) == (["Hi."], ["Ask at the door."])

    def test_but_not_without_end(self):
        model = ScriptedModel("No.")
        assistant = Assistant(model, output_guards=[lambda answer: Retry("Again.")])

        with pytest.raises(GuardRefusedError):
            assistant.chat("c", "Hi.")

        assert len(model.requests) == 3
        assert texts() == []

    def test_what_tools_have_returned_stays(self):
        def look() -> str:
            """Look."""
            return "4711"

        model = ScriptedModel(calling(("1", "look", "{}")), "It is 4711.", "Hello.")
        assistant = Assistant(
            model,
            tools=[look],
            output_guards=[lambda answer: Refuse() if "4711" in (answer.text or "") else None],
        )

        with pytest.raises(GuardRefusedError):
            assistant.chat("c", "Which code?")
        assistant.chat("c", "Hi.")

        assert [message.text for message in model.sent[2] if message.type == "TOOL_EXECUTION_RESULT"] == ["4711"]

    def test_a_text_beside_calls_is_guarded_before_they_run(self):
        ran = []

        def look() -> str:
            """Look."""
            ran.append(1)
            return "Seen."

        model = ScriptedModel(calling(("1", "look", "{}"), text="The code is 4711."))
        assistant = Assistant(model, tools=[look], output_guards=[lambda answer: Refuse()])

        with pytest.raises(GuardRefusedError):
            assistant.chat("c", "Hi.")

        assert ran == []

    @pytest.mark.parametrize("way", ["stream", "astream"])
    def test_a_part_that_no_guard_has_seen_is_not_kept(self, way):
        model = ScriptedModel(RuntimeError("down"), words_before_error=2)
        assistant = Assistant(model, keep_partial=True, output_guards=[lambda answer: None])

        with pytest.raises(RuntimeError):
            ask(assistant, way)

        assert texts() == []

    @pytest.mark.parametrize("way", ["stream", "astream"])
    def test_what_a_guard_did_not_want_is_not_kept_if_no_budget_is_left_for_another(self, way, settings, ann):
        settings.CHATMEMORY = {**settings.CHATMEMORY, "BUDGET": {"TOKENS": 1, "PER": "day"}}
        guards = [lambda answer: Retry("Name no code.")]
        assistant = Assistant(ScriptedModel("The code is 4711."), keep_partial=True, output_guards=guards)

        with pytest.raises(BudgetExceededError):
            ask(assistant, way, persist="early", owner=ann)

        assert texts() == []

    def test_calls_that_are_too_long_to_hold_back_are_refused(self, monkeypatch):
        class Calling(ScriptedModel):
            def do_stream(self, request):
                yield PartialToolCall(0, "1", "look", "{")
                yield from (PartialToolCall(0, arguments=" ") for _ in range(8))
                raise AssertionError

        monkeypatch.setattr(assistants, "MAX_HELD", 8)

        with pytest.raises(GuardRefusedError):
            ask(Assistant(Calling(), output_guards=[lambda answer: None]), "stream")

    def test_one_that_is_too_long_to_hold_back_is_refused(self, monkeypatch):
        monkeypatch.setattr(assistants, "MAX_HELD", 8)
        assistant = Assistant(ScriptedModel("One two three four."), output_guards=[lambda answer: None])

        with pytest.raises(GuardRefusedError):
            ask(assistant, "stream")

        assert texts() == []


class TestOverHttp:
    @pytest.mark.parametrize("runs", ["request", "worker"])
    @asynchronous
    async def test_a_refused_question_is_422_with_the_text_of_the_guard(self, chat, settings, runs):
        settings.CHATMEMORY = {**settings.CHATMEMORY, "CHAT": {**settings.CHATMEMORY["CHAT"], "RUNS": runs}}
        client = chat("One.", input_guards=[refuses])

        response = await client.post({"id": "c", "messages": [user("Hi.", "u1")]})

        assert (response.status_code, response.content) == (422, b"Ask something else.")
        assert not await Message.objects.aexists()
        assert not await Run.objects.filter(active__isnull=False).aexists()

    @asynchronous
    async def test_a_question_that_was_rewritten_has_another_answer_although_the_page_shows_it_as_it_was(self, chat):
        client = chat("One.", "Two.", input_guards=[lambda question: Rewrite("Clean.")])
        await client.say("Dirty.", "u1")

        response = await client.post({"id": "c", "trigger": "regenerate-message", "messages": [user("Dirty.", "u1")]})

        assert text_of(await chunks(response)).strip() == "Two."
        assert await client.texts() == ["Clean.", "Two."]

    @asynchronous
    async def test_a_stored_question_whose_answer_failed_is_not_guarded_once_more(self, chat):
        guards = [lambda question: Rewrite(f"Be kind. {question.single_text}")]
        client = chat(RateLimitError("busy"), "One.", input_guards=guards)
        await client.say("Hi.", "u1")

        await client.regenerate()

        assert await client.texts() == ["Be kind. Hi.", "One."]

    @pytest.mark.parametrize(("text", "is_another"), [("Dirty.", False), ("Clean.", False), ("Another.", True)])
    def test_a_question_that_was_rewritten_is_the_same_one_while_it_is_answered(self, chat, ann, text, is_another):
        chat("One.", input_guards=[lambda question: Rewrite(question.single_text.replace("Dirty", "Clean"))])
        get_chat_memory(f"{ann.pk}:c", owner=ann).add(NewMessage(UserMessage("Clean."), client_message_id="u1"))
        body = json.dumps({"id": "c", "messages": [user(text, "u1")]})
        request = RequestFactory().post("/", body, content_type="application/json", headers=bearer(ann))

        assert is_next(admission(request), request) is is_another

    @pytest.mark.parametrize(("text", "status"), [("Dirty.", 200), ("Another.", 400)])
    @asynchronous
    async def test_one_that_was_rewritten_adds_nothing_above_the_quota(self, chat, settings, text, status):
        client = chat("One.", input_guards=[lambda question: Rewrite(question.single_text.replace("Dirty", "Clean"))])
        await client.say("Dirty.", "u1")
        settings.CHATMEMORY = {**settings.CHATMEMORY, "STORAGE_QUOTA": 1}

        response = await client.post({"id": "c", "messages": [user(text, "u1")]})

        assert response.status_code == status
        assert await client.texts() == ["Clean.", "One."]

    @asynchronous
    async def test_what_a_guard_adds_counts_from_the_next_question_on(self, chat, settings):
        settings.CHATMEMORY = {**settings.CHATMEMORY, "STORAGE_QUOTA": 100}
        client = chat("One.", "Two.", input_guards=[lambda question: Rewrite(f"{question.single_text} {'x' * 100}")])

        assert text_of(await client.say("Hi.", "u1")).strip() == "One."
        assert (await client.post({"id": "c", "messages": [user("Hi again.", "u2")]})).status_code == 400

    @asynchronous
    async def test_a_refused_answer_is_the_error_of_the_stream(self, chat):
        client = chat("The code is 4711.", "Hello.", output_guards=[_no_code])

        found = await client.say("Which code?", "u1")
        again = await client.say("Hi.", "u2")

        assert found[-1] == {"type": "error", "errorText": "No codes here."}
        assert "4711" not in str(found)
        assert text_of(again).strip() == "Hello."
        assert client.model.sent[1] == [UserMessage("Hi.")]


def _no_code(answer: AiMessage) -> Refuse | None:
    return Refuse("No codes here.") if "4711" in (answer.text or "") else None
