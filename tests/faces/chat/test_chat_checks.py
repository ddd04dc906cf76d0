"""The system checks of the setting CHAT, each found by its id."""

from functools import partial

import pytest
from django.core.checks import run_checks
from django.utils.translation import gettext_lazy

from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.checks import check_assistant, check_chat
from chatmemory_django.chat.conf import Chat
from chatmemory_django.chat.openai import OpenAiChatModel
from chatmemory_django.chat.runs.streams import DatabaseStreams, Streams
from chatmemory_django.chat.tools import Tool
from chatmemory_django.memory import MessageWindowChatMemory, TokenWindowChatMemory
from chatmemory_django.tokens import OpenAiTokenCountEstimator, ScaledTokenCountEstimator
from tests.estimators import WORDS
from tests.faces.chat.scripted import ScriptedModel

assistant = Assistant(ScriptedModel("Yes."))


def assistant_of(request) -> Assistant:
    return assistant


def assistant_for(request, asked) -> Assistant:
    return assistant


async def later(request) -> Assistant:
    return assistant


class Own(DatabaseStreams):
    """Streams of a project's own."""


class Unfinished(Streams):
    """Streams that were written before conversations took them along."""

    def begin(self, maker): ...
    def write(self, pieces): ...
    def end(self, maker, last): ...
    def find(self, memory_id, owner_key): ...
    def read(self, maker, position): ...
    def stop(self, maker): ...


def found(settings, chat: object) -> list[str]:
    settings.CHATMEMORY = {"CHAT": chat}
    return [each.id for each in check_chat()]


@pytest.mark.parametrize(
    "chat",
    [
        {},
        {"ASSISTANT": f"{__name__}.assistant", "THROTTLE_RATE": None, "WAIT_SECONDS": 0},
        {"ASSISTANT": f"{__name__}.assistant_of", "THROTTLE_RATE": "5/hour", "MAX_PARTS": 1},
        {"ASSISTANT": assistant},
        {"ASSISTANT": f"{__name__}.assistant_for"},
        {"ASSISTANTS": {"support": f"{__name__}.assistant", "of-2_B": assistant_for}},
        {"STREAMS": f"{__name__}.Own"},
        {"LEFT": "wait", "GREETING": "Hello. How are you?"},
        {"LEFT": "refuse", "GREETING": gettext_lazy("Hello")},
        {"GREETING": f"{__name__}.assistant_of"},
        {"GREETING": assistant_of},
        {"GREETING": "www.example.org"},
        {"STREAMS": "chatmemory_django.chat.runs.redis_streams.RedisStreams"},
    ],
)
def test_valid_settings_pass(settings, chat):
    if "redis" in str(chat):
        pytest.importorskip("redis")
    assert found(settings, chat) == []


class Half:
    def capture(self, request) -> str: ...


class Whole(Half):
    def enter(self, text: str): ...


whole = Whole()


@pytest.mark.parametrize("given", [f"{__name__}.whole", Whole(), f"{__name__}.assistant_of", None])
def test_a_thread_context_is_an_object_or_a_function(settings, given):
    assert found(settings, {"THREAD_CONTEXT": given}) == []


@pytest.mark.parametrize("given", [f"{__name__}.nothing", Half(), 7, "not a path"])
def test_E039_a_thread_context_that_is_neither(settings, given):
    assert found(settings, {"THREAD_CONTEXT": given}) == ["chatmemory.E039"]


@pytest.mark.parametrize("engine", ["django_tenants.postgresql_backend", "django_pgschemas.postgresql_backend"])
def test_E040_an_engine_of_tenants_without_a_thread_context(settings, monkeypatch, engine):
    monkeypatch.setitem(settings.DATABASES["default"], "ENGINE", engine)

    assert found(settings, {}) == ["chatmemory.E040"]
    assert "THREAD_CONTEXT" in check_chat()[0].hint
    assert found(settings, {"THREAD_CONTEXT": whole}) == []


@pytest.mark.parametrize("chat", [None, [], "yes"])
def test_E031_chat_is_not_a_dict(settings, chat):
    assert found(settings, chat) == ["chatmemory.E031"]


@pytest.mark.parametrize("runs", ["celery", None, ["web"]])
def test_E043_runs_are_neither_of_the_web_nor_of_a_worker(settings, runs):
    assert found(settings, {"RUNS": runs}) == ["chatmemory.E043"]


def thread_context(request): ...


class CapturedContext:
    def capture(self, request): ...
    def enter(self, text): ...


captured = CapturedContext()


def test_E044_a_worker_has_no_request_to_make_a_context_of(settings):
    worker = {"RUNS": "worker", "THREAD_CONTEXT": f"{__name__}.thread_context"}

    assert found(settings, worker) == ["chatmemory.E044"]
    assert found(settings, {**worker, "RUNS": "web"}) == []
    assert found(settings, {**worker, "THREAD_CONTEXT": f"{__name__}.captured"}) == []


def tool_of_request(order: int, request) -> str:
    """Return an order."""


def tool_without(order: int, request=None) -> str:
    """Return an order."""


def system_of_request(owner, request):
    return "Be brief."


def context_of_request(*, request):
    return None


needing = Assistant(
    ScriptedModel("Yes."),
    system_message=system_of_request,
    context=[context_of_request, partial(context_of_request, request=None)],
    tools=[tool_of_request, tool_without, Tool(tool_of_request, name="other", runs_in="client")],
)


def tools_of_request(owner, request):
    return []


equipping = Assistant(ScriptedModel("Yes."), tools=tools_of_request)


def assistant_without(request=None, asked=None) -> Assistant:
    return assistant


def test_W035_names_the_functions_that_have_no_request_in_a_worker(settings):
    free, equipping = f"{__name__}.assistant_without", f"{__name__}.equipping"
    assistants = {"needing": f"{__name__}.needing", "free": free, "of": assistant_for, "equipping": equipping}
    settings.CHATMEMORY = {"CHAT": {"RUNS": "worker", "ASSISTANT": f"{__name__}.assistant", "ASSISTANTS": assistants}}

    [first, second, third] = check_chat()

    assert {first.id, second.id, third.id} == {"chatmemory.W035"}
    assert "['needing']" in first.msg
    assert first.msg.endswith("default: system_of_request, context_of_request, tool_of_request.")
    assert second.msg.endswith("default: assistant_for.")
    assert third.msg.endswith("default: tools_of_request.")


@pytest.mark.parametrize("left", [None, "STOP", 5, ["stop"]])
def test_E046_left_is_none_of_the_three(settings, left):
    assert found(settings, {"LEFT": left}) == ["chatmemory.E046"]


@pytest.mark.parametrize("greeting", [5, b"Hello", ["Hello"], f"{__name__}.assistant", f"{__name__}.missing"])
def test_E045_a_greeting_is_no_text_and_no_function(settings, greeting):
    assert found(settings, {"GREETING": greeting}) == ["chatmemory.E045"]


@pytest.mark.parametrize("name", ["ASISTANT", "ACCESS_POLICY"])
def test_W031_an_unknown_setting(settings, name):
    assert found(settings, {name: "x"}) == ["chatmemory.W031"]


@pytest.mark.django_db
def test_W032_the_chat_has_no_assistant(settings):
    for chat, ids in (
        ({"ASSISTANT": None}, ["chatmemory.W032"]),
        ({"ASSISTANT": assistant}, []),
        ({"ASSISTANTS": {"support": assistant}}, []),
    ):
        settings.CHATMEMORY = {"CHAT": chat}
        assert [each.id for each in run_checks() if each.id == "chatmemory.W032"] == ids
    for without in ({}, {"CHAT": {}}):
        settings.CHATMEMORY = without
        assert [each.id for each in check_assistant()] == ["chatmemory.W032"]
    for invalid in ([], {"CHAT": []}):  # other checks report it
        settings.CHATMEMORY = invalid
        assert check_assistant() == []


def test_a_site_without_urls_answers_no_questions(settings):
    settings.CHATMEMORY = {"CHAT": {"ASSISTANT": None}}
    del settings.ROOT_URLCONF

    assert check_assistant() == []


@pytest.mark.parametrize(("given", "ids"), [({}, ["chatmemory.W033"]), ({"api_key": "none"}, [])])
def test_W033_the_model_has_no_api_key(settings, monkeypatch, given, ids):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    settings.CHATMEMORY = {"CHAT": {"ASSISTANT": Assistant(OpenAiChatModel("gpt-4o", **given))}}

    assert [each.id for each in check_chat()] == ids

    monkeypatch.setenv("OPENAI_API_KEY", "key")
    assert check_chat() == []


def test_W033_the_vendor_of_the_model_has_no_api_key(settings, monkeypatch):
    pytest.importorskip("anthropic")
    from pydantic_ai.models.test import TestModel

    from chatmemory_django.chat.pydantic_ai import PydanticAiChatModel

    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    settings.CHATMEMORY = {"CHAT": {"ASSISTANT": Assistant(PydanticAiChatModel("anthropic:claude-sonnet-5-5"))}}
    [warning] = check_chat()
    assert warning.id == "chatmemory.W033"
    assert "ANTHROPIC_API_KEY" in warning.hint

    monkeypatch.setenv("ANTHROPIC_API_KEY", "key")
    assert check_chat() == []
    settings.CHATMEMORY = {"CHAT": {"ASSISTANT": Assistant(PydanticAiChatModel(TestModel()))}}
    assert check_chat() == []


@pytest.mark.parametrize(
    ("model", "max_tokens", "detail", "ids"),
    [
        ("gpt-4o-mini", 8506, "AUTO", ["chatmemory.W034"]),  # 3 for the list, 4 for the message, 8,500 for the image
        ("gpt-4o-mini", 8507, "AUTO", []),
        ("gpt-4o-mini", 4000, "LOW", []),
        ("gpt-4.1-mini", 4000, "AUTO", []),
        ("gpt-4.1-mini", 4000, "SHARP", ["chatmemory.E036"]),
    ],
)
def test_W034_no_image_fits_in_the_memory(settings, model, max_tokens, detail, ids):
    options = {"max_tokens": max_tokens, "token_count_estimator": model}
    memory = {"CLASS": "chatmemory_django.memory.TokenWindowChatMemory", "OPTIONS": options}
    settings.CHATMEMORY = {"CHAT": {"ASSISTANT": assistant, "IMAGE_DETAIL": detail}, "MEMORY": memory}
    assert [each.id for each in check_chat()] == ids

    own = Assistant(
        ScriptedModel("Yes."),
        memory=TokenWindowChatMemory,
        memory_options={**options, "token_count_estimator": OpenAiTokenCountEstimator(model)},
    )
    settings.CHATMEMORY = {"CHAT": {"ASSISTANT": own, "IMAGE_DETAIL": detail}}
    assert [each.id for each in check_chat()] == ids


def test_W034_names_both_numbers(settings):
    small = {"max_tokens": 100, "token_count_estimator": ScaledTokenCountEstimator("gpt-4o", 1.2)}
    settings.CHATMEMORY = {
        "CHAT": {"ASSISTANT": Assistant(ScriptedModel("Yes."), memory=TokenWindowChatMemory, memory_options=small)}
    }
    [warning] = check_chat()
    assert "takes 315 tokens, and max_tokens is 100." in warning.msg


@pytest.mark.parametrize(
    ("memory", "options"),
    [
        (None, {"max_tokens": lambda memory_id: 1 / 0}),
        (lambda **options: 1 / 0, {}),
        (TokenWindowChatMemory, {"max_tokens": "100"}),
        (TokenWindowChatMemory, {"max_tokens": 3, "token_count_estimator": WORDS}),  # it may ask a vendor
        (MessageWindowChatMemory, {"max_messages": 1}),
    ],
)
def test_W034_needs_a_limit_that_is_the_same_for_all_memories(settings, memory, options):
    settings.CHATMEMORY = {
        "CHAT": {"ASSISTANT": Assistant(ScriptedModel("Yes."), memory=memory, memory_options=options)},
        "MEMORY": {"CLASS": "chatmemory_django.memory.TokenWindowChatMemory", "OPTIONS": {"max_tokens": 3}},
    }
    assert check_chat() == []


@pytest.mark.parametrize(
    "memory",
    [lambda memory_id: 1 / 0, {}, {"CLASS": "nowhere", "OPTIONS": 3}, "nowhere"],
    ids=["by its id", "empty", "unknown", "path"],
)
def test_W034_leaves_an_invalid_memory_and_one_by_its_id_to_other_checks(settings, memory):
    settings.CHATMEMORY = {"CHAT": {"ASSISTANT": assistant}, "MEMORY": memory}
    assert check_chat() == []


def test_W031_suggests_a_setting(settings):
    settings.CHATMEMORY = {"CHAT": {"ASISTANT": "x"}}

    [warning] = check_chat()

    assert warning.msg == "CHATMEMORY['CHAT'] has no setting 'ASISTANT', so it has no effect."
    assert warning.hint == "Did you mean 'ASSISTANT'?"


@pytest.mark.parametrize("value", [-1, "1", 1.5, True, None], ids=repr)
@pytest.mark.parametrize("name", [name for name, default in Chat.defaults().items() if type(default) is int])
def test_E032_a_limit_is_not_a_positive_whole_number(settings, name, value):
    assert found(settings, {name: value}) == ["chatmemory.E032"]


@pytest.mark.parametrize("name", ["THROTTLE_RATE", "READ_THROTTLE_RATE"])
@pytest.mark.parametrize("rate", ["often", "60", "60/", "/min", "60/month", "60/minutes", "0/min", 7, "-1/min"])
def test_E033_an_invalid_rate(settings, rate, name):
    assert found(settings, {name: rate}) == ["chatmemory.E033"]


@pytest.mark.parametrize("path", ["nowhere.assistant", f"{__name__}.Own", f"{__name__}.missing", 7, ""], ids=repr)
def test_E034_the_assistant_is_not_an_assistant(settings, path):
    assert found(settings, {"ASSISTANT": path}) == ["chatmemory.E034"]
    assert found(settings, {"ASSISTANTS": {"a": assistant, "b": path}}) == ["chatmemory.E034"]


@pytest.mark.parametrize(
    "function",
    [lambda: assistant, lambda request, asked, user: assistant, lambda request, *, asked: assistant, later],
    ids=["none", "three", "by keyword", "async"],
)
def test_E034_a_function_takes_neither_the_request_nor_what_is_asked_besides(settings, function):
    assert found(settings, {"ASSISTANT": function}) == ["chatmemory.E034"]


@pytest.mark.parametrize(
    "given", [None, ["mysite.support"], {"a b": "x"}, {"": "x"}, {"é": "x"}, {7: "x"}, {"a\n": "x"}, {"a" * 65: "x"}]
)
def test_E038_the_assistants_have_no_names(settings, given):
    assert found(settings, {"ASSISTANTS": given}) == ["chatmemory.E038"]


@pytest.mark.parametrize(
    "path", ["nowhere.Streams", f"{__name__}.assistant", "chatmemory_django.access.AccessPolicy", None]
)
def test_E035_a_class_is_of_the_wrong_kind(settings, path):
    assert found(settings, {"STREAMS": path}) == ["chatmemory.E035"]


@pytest.mark.parametrize("level", ["auto", "SHARP", None, 1])
def test_E036_an_unknown_level_of_detail(settings, level):
    assert found(settings, {"IMAGE_DETAIL": level}) == ["chatmemory.E036"]


def test_E037_streams_without_a_method(settings):
    settings.CHATMEMORY = {"CHAT": {"STREAMS": f"{__name__}.Unfinished"}}

    [error] = check_chat()

    assert error.id == "chatmemory.E037"
    assert error.msg.endswith("does not implement forget.")


@pytest.mark.django_db
def test_the_check_is_registered(settings):
    settings.CHATMEMORY = {"CHAT": []}

    assert "chatmemory.E031" in {each.id for each in run_checks()}


def test_an_invalid_CHATMEMORY_is_left_to_another_check(settings):
    settings.CHATMEMORY = []

    assert check_chat() == []
