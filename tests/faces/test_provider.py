"""Memories built from the settings, and their owners."""

from typing import ClassVar

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied

from chatmemory_django.checks import check_settings
from chatmemory_django.core.windows import to_entry
from chatmemory_django.memory import MessageWindowChatMemory, TokenWindowChatMemory
from chatmemory_django.messages import AiMessage, NewMessage, SystemMessage, UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.provider import MemoryConfiguration, get_chat_memory, known_window
from chatmemory_django.stores.django import DjangoChatMemoryStore
from chatmemory_django.stores.django.changes import new_row
from chatmemory_django.tokens import OpenAiTokenCountEstimator
from tests.estimators import ADDITIVE_WORDS

U1, A1, U2 = UserMessage("one"), AiMessage("hello"), UserMessage("two")
MESSAGE_WINDOW = "chatmemory_django.memory.MessageWindowChatMemory"
TOKEN_WINDOW = "chatmemory_django.memory.TokenWindowChatMemory"
A_DICT = {"CLASS": MESSAGE_WINDOW, "OPTIONS": {"max_messages": 7}}


def by_id(memory_id: object) -> dict:
    """Select short memories for short ids."""
    return {"CLASS": MESSAGE_WINDOW, "OPTIONS": {"max_messages": len(str(memory_id))}}


class Own(MessageWindowChatMemory):
    """A custom memory class."""


@pytest.fixture
def ann(db):
    return User.objects.create_user("ann")


@pytest.fixture
def bob(db):
    return User.objects.create_user("bob")


class TestSettings:
    """Creating a memory does not query the database."""

    @pytest.mark.parametrize("given", [None, {}], ids=["no_setting", "empty_setting"])
    def test_by_default_a_memory_holds_twenty_messages(self, settings, given):
        if given is None:
            del settings.CHATMEMORY
        else:
            settings.CHATMEMORY = given

        memory = get_chat_memory("a")

        assert type(memory) is MessageWindowChatMemory
        assert memory.window().limit == 20
        assert memory.id == "a"
        assert isinstance(memory.store, DjangoChatMemoryStore)

    def test_a_dict_defines_class_and_options(self, settings):
        settings.CHATMEMORY = {
            "MEMORY": {
                "CLASS": MESSAGE_WINDOW,
                "OPTIONS": {
                    "max_messages": 7,
                    "always_keep_system_message_first": True,
                    "start_on_user": True,
                    "repair_tools": True,
                },
            }
        }

        memory = get_chat_memory("a")

        assert memory.window().limit == 7
        assert memory.window().always_keep_system_message_first
        assert memory.start_on_user
        assert memory.repair_tools

    def test_a_custom_class_is_supported(self, settings):
        settings.CHATMEMORY = {"MEMORY": {"CLASS": f"{__name__}.Own", "OPTIONS": {"max_messages": 7}}}

        assert type(get_chat_memory("a")) is Own

    @pytest.mark.parametrize("memory", [by_id, f"{__name__}.by_id"], ids=["function", "path"])
    def test_a_function_is_called_with_the_memory_id(self, settings, memory):
        settings.CHATMEMORY = {"MEMORY": memory}

        assert get_chat_memory("ab").window().limit == 2
        assert get_chat_memory("abcd").window().limit == 4

    def test_the_path_of_a_dict_is_supported(self, settings):
        settings.CHATMEMORY = {"MEMORY": f"{__name__}.A_DICT"}

        assert get_chat_memory("a").window().limit == 7

    def test_settings_are_read_each_time(self, settings):
        settings.CHATMEMORY = {"MEMORY": {"CLASS": MESSAGE_WINDOW, "OPTIONS": {"max_messages": 1}}}
        before = get_chat_memory("a").window().limit

        settings.CHATMEMORY = {"MEMORY": {"CLASS": MESSAGE_WINDOW, "OPTIONS": {"max_messages": 2}}}

        assert (before, get_chat_memory("a").window().limit) == (1, 2)

    def test_the_name_of_a_model_selects_its_estimator(self, settings):
        options = {"max_tokens": 100, "token_count_estimator": "gpt-4o"}
        settings.CHATMEMORY = {"MEMORY": {"CLASS": TOKEN_WINDOW, "OPTIONS": options}}

        memory = get_chat_memory("a")

        assert isinstance(memory, TokenWindowChatMemory)
        assert isinstance(memory.token_count_estimator, OpenAiTokenCountEstimator)
        assert memory.token_count_estimator.model_name == "gpt-4o"
        assert options["token_count_estimator"] == "gpt-4o"

    def test_an_estimator_may_be_passed_directly(self, settings):
        options = {"max_tokens": 100, "token_count_estimator": ADDITIVE_WORDS}
        settings.CHATMEMORY = {"MEMORY": {"CLASS": TOKEN_WINDOW, "OPTIONS": options}}

        assert get_chat_memory("a").token_count_estimator is ADDITIVE_WORDS

    @pytest.mark.parametrize("estimator", [ADDITIVE_WORDS, "gpt-4o"], ids=["object", "model"])
    def test_a_limit_in_tokens_comes_with_its_estimator(self, estimator):
        memory = get_chat_memory("a", max_tokens=50, token_count_estimator=estimator, start_on_user=True)

        assert (memory.window().limit, memory.start_on_user) == (50, True)
        assert memory.token_count_estimator.estimate_token_count_in_text("one two") == 2

    def test_an_unknown_option_is_an_error_beside_a_limit_in_tokens(self):
        with pytest.raises(TypeError, match="unknown"):
            get_chat_memory("a", max_tokens=50, token_count_estimator=ADDITIVE_WORDS, unknown=1)

    @pytest.mark.parametrize(
        ("memory", "error"),
        [
            ({"CLASS": "nowhere.Memory"}, ImportError),
            ("nowhere.by_id", ImportError),
            ({"CLASS": MESSAGE_WINDOW, "OPTIONS": {}}, TypeError),
            ({"CLASS": MESSAGE_WINDOW, "OPTIONS": {"max_messages": 0}}, ValueError),
            ({"CLASS": TOKEN_WINDOW, "OPTIONS": {"max_tokens": 5, "token_count_estimator": "gpt-none"}}, ValueError),
        ],
        ids=["class", "function", "missing_option", "wrong_option", "unknown_model"],
    )
    def test_invalid_settings_fail_at_once(self, settings, memory, error):
        settings.CHATMEMORY = {"MEMORY": memory}

        with pytest.raises(error):
            get_chat_memory("a")

    def test_an_invalid_memory_id_fails_at_once(self):
        with pytest.raises(TypeError, match="A memory id must not be None"):
            get_chat_memory(None)


class TestWindows:
    """The limits in the settings, for code that displays them."""

    def test_a_memory_id_has_the_window_of_its_memory(self, settings):
        settings.CHATMEMORY = {"MEMORY": by_id}

        assert MemoryConfiguration.of("abc").window().limit == get_chat_memory("abc").window().limit == 3

    def test_a_window_names_what_counts_its_tokens(self, settings):
        settings.CHATMEMORY = {
            "MEMORY": {"CLASS": TOKEN_WINDOW, "OPTIONS": {"max_tokens": 70, "token_count_estimator": "gpt-4o"}}
        }

        window = known_window("any")

        assert (window.limit, window.counter) == (70, "o200k_base")

    @pytest.mark.parametrize(
        "memory",
        ["tests.faces.test_provider.by_id", {"CLASS": MESSAGE_WINDOW, "OPTIONS": {"max_messages": len}}],
        ids=["path_of_a_function", "dynamic_limit"],
    )
    def test_a_window_may_depend_on_the_memory_id(self, settings, memory):
        settings.CHATMEMORY = {"MEMORY": memory}

        assert known_window("abcd").limit == 4
        assert MemoryConfiguration.of("abcd").window().limit == 4


@pytest.mark.django_db
class TestMemory:
    def test_added_messages_are_available_to_the_next_caller(self):
        get_chat_memory("a").add(U1, A1)

        assert get_chat_memory("a").messages() == [U1, A1]
        assert get_chat_memory("b").messages() == []

    def test_its_window_comes_from_the_settings(self, settings):
        settings.CHATMEMORY = {"MEMORY": by_id}

        get_chat_memory("ab").add(U1, A1, U2)

        assert get_chat_memory("ab").messages() == [A1, U2]

    @pytest.mark.parametrize(("keeps", "rows"), [(True, 3), (False, 2)], ids=["kept", "not_kept"])
    def test_the_settings_decide_whether_history_is_kept(self, settings, keeps, rows):
        settings.CHATMEMORY = {"MEMORY": by_id, "KEEP_HISTORY": keeps}

        get_chat_memory("ab").add(U1)
        get_chat_memory("ab").add(A1)
        get_chat_memory("ab").add(U2)

        assert Conversation.objects.get(memory_id="ab").messages.count() == rows

    def test_without_an_owner_a_conversation_has_none(self):
        get_chat_memory("a").add(U1)

        assert Conversation.objects.get(memory_id="a").owner is None


class TestOwner:
    def test_a_new_conversation_belongs_to_its_owner(self, ann):
        get_chat_memory("a", owner=ann).add(U1)

        assert Conversation.objects.get(memory_id="a").owner == ann
        assert get_chat_memory("a", ann).messages() == [U1]

    @pytest.mark.parametrize(
        "write",
        [lambda memory: memory.add(U2), lambda memory: memory.set([U2]), lambda memory: memory.clear()],
        ids=["add", "set", "clear"],
    )
    @pytest.mark.parametrize("has_owner", [True, False], ids=["another_user", "no_owner"])
    def test_writing_to_a_conversation_of_another_user_is_rejected(self, ann, bob, write, has_owner):
        get_chat_memory("a", owner=ann if has_owner else None).add(U1)

        with pytest.raises(PermissionDenied, match="The conversation 'a' belongs to another user"):
            write(get_chat_memory("a", owner=bob))

        assert get_chat_memory("a").messages() == [U1]
        assert Conversation.objects.get(memory_id="a").owner == (ann if has_owner else None)

    @pytest.mark.parametrize("has_owner", [True, False], ids=["another_user", "no_owner"])
    def test_a_conversation_of_another_user_reads_as_empty(self, ann, bob, has_owner):
        memory = get_chat_memory("a", owner=ann if has_owner else None)
        memory.add(SystemMessage("be brief"), U1)

        assert get_chat_memory("a", owner=bob).messages() == []
        assert memory.messages() == [SystemMessage("be brief"), U1]

    def test_reading_neither_creates_nor_claims_a_conversation(self, ann, bob):
        get_chat_memory("a", owner=bob).messages()

        get_chat_memory("a", owner=ann).add(U1)

        assert Conversation.objects.get().owner == ann

    def test_clearing_an_unknown_conversation_creates_nothing(self, ann):
        get_chat_memory("a", owner=ann).clear()

        assert Conversation.objects.count() == 0

    def test_without_an_owner_every_conversation_is_accessible(self, ann):
        get_chat_memory("a", owner=ann).add(U1)

        get_chat_memory("a").add(A1)

        assert get_chat_memory("a", owner=ann).messages() == [U1, A1]

    def test_an_owner_must_be_saved_first(self):
        with pytest.raises(ValueError, match="owner must be a saved user, or None for no owner"):
            get_chat_memory("a", owner=User(username="new"))

    def test_deleting_the_owner_deletes_the_conversations(self, ann, bob):
        get_chat_memory("a", owner=ann).add(U1)
        get_chat_memory("b", owner=bob).add(U1)

        ann.delete()

        assert [conversation.memory_id for conversation in Conversation.objects.all()] == ["b"]


@pytest.mark.django_db
class TestOptionsOfAMemory:
    def test_a_limit_overrides_the_settings(self, settings):
        settings.CHATMEMORY = {
            "MEMORY": {"CLASS": TOKEN_WINDOW, "OPTIONS": {"max_tokens": 9, "token_count_estimator": "gpt-4o"}}
        }

        assert get_chat_memory("c", max_messages=2).window().limit == 2
        assert get_chat_memory("c", max_messages=2).window().estimator is None
        assert get_chat_memory("c", max_tokens=50).window().limit == 50

    def test_other_options_are_those_of_the_class(self):
        assert get_chat_memory("c", start_on_user=True).start_on_user
        with pytest.raises(TypeError, match="no_such_option"):
            get_chat_memory("c", no_such_option=1)

    def test_the_database_can_be_selected(self):
        assert get_chat_memory("c", using="default").store.using == "default"


@pytest.mark.django_db
def test_a_repr_names_the_object_and_never_contains_messages():
    secret = UserMessage("a secret")
    memory = get_chat_memory("c")
    memory.add(secret)
    with memory.turn() as turn:
        turn.add(secret)
        conversation = Conversation.objects.get()
        conversation.title = "a secret"
        shown = [repr(each) for each in (memory, memory.store, turn, conversation, conversation.messages.get())]

    assert shown[0] == "<TokenWindowChatMemory 'c' in DjangoChatMemoryStore(using=None, keep_history=True, owner=None)>"
    assert not any("secret" in each for each in shown)
    assert "secret" not in repr(new_row(NewMessage(secret))) + repr(to_entry(1, secret))


def shorten(previous, messages):
    raise AssertionError("Nothing but an add may have a memory summarized.")


class TestSummarizingMemory:
    OPTIONS: ClassVar = {
        "max_tokens": 400,
        "token_count_estimator": "gpt-4o",
        "summarize": "tests.faces.test_provider.shorten",
        "summary_tokens": 100,
        "after_tokens": 50,
    }

    @pytest.fixture(autouse=True)
    def configured(self, settings):
        settings.CHATMEMORY = {
            "MEMORY": {"CLASS": "chatmemory_django.memory.SummarizingChatMemory", "OPTIONS": self.OPTIONS}
        }

    def test_a_summarizing_memory_is_built_with_the_function_at_the_path(self):
        assert get_chat_memory("c").summarizer is shorten

    def test_a_summarizing_memory_has_a_known_window(self):
        assert MemoryConfiguration.of("c").window().limit == known_window("c").limit == 400

    def test_another_limit_has_no_lower_mark_but_one_that_is_passed_with_it(self, settings):
        settings.CHATMEMORY["MEMORY"]["OPTIONS"] = {**self.OPTIONS, "evict_to": 300}

        assert get_chat_memory("c").window().evict_to == 300
        assert get_chat_memory("c", max_tokens=200).window().evict_to is None
        assert get_chat_memory("c", max_tokens=900, evict_to=600).window().evict_to == 600

    def test_a_limit_of_another_unit_is_an_error_and_not_a_memory_without_a_summary(self):
        with pytest.raises(ValueError, match=r"^max_messages cannot limit .* SummarizingChatMemory"):
            get_chat_memory("c", max_messages=3)

    def test_a_limit_without_room_for_a_summary_is_viewed_without_one(self):
        configured = MemoryConfiguration.of("c")

        assert configured.with_limit(max_tokens=5, is_only_read=True)[1:] == (
            "chatmemory_django.memory.TokenWindowChatMemory",
            {"max_tokens": 5, "token_count_estimator": "gpt-4o"},
        )
        assert configured.with_limit(is_only_read=True).path == "chatmemory_django.memory.SummarizingChatMemory"

    def test_without_history_the_check_fails(self, settings):
        settings.CHATMEMORY = {**settings.CHATMEMORY, "KEEP_HISTORY": False}

        [error] = check_settings()

        assert (error.id, "store must keep the history" in error.msg) == ("chatmemory.E004", True)

    @pytest.mark.parametrize(
        "wrong", [{"summarize": "nowhere.shorten"}, {"summary_tokens": 400}, {"after_tokens": 0}, {"summarize": 1}]
    )
    def test_with_invalid_options_the_check_fails(self, settings, wrong):
        memory = {**settings.CHATMEMORY["MEMORY"], "OPTIONS": {**self.OPTIONS, **wrong}}
        settings.CHATMEMORY = {"MEMORY": memory}

        assert [error.id for error in check_settings()] == ["chatmemory.E004"]

    def test_with_dynamic_limits_the_check_passes(self, settings):
        dynamic = {name: lambda _: 50 for name in ("max_tokens", "summary_tokens", "after_tokens")}
        memory = {**settings.CHATMEMORY["MEMORY"], "OPTIONS": {**self.OPTIONS, **dynamic}}
        settings.CHATMEMORY = {"MEMORY": memory}

        assert check_settings() == []
