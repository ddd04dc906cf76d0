"""Any history, for any vendor: what is sent breaks none of its rules, and does not depend on what has left."""

import os
import subprocess
import sys
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmemory_django.chat import outgoing
from chatmemory_django.chat.openai import OpenAiChatModel
from chatmemory_django.chat.openai.requests import to_messages
from chatmemory_django.chat.outgoing import STRICTEST, Difference, for_vendor
from chatmemory_django.core.shown import VENDOR_ATTRIBUTE
from chatmemory_django.messages import (
    AiMessage,
    ChatMessage,
    CustomMessage,
    Image,
    ImageContent,
    SystemMessage,
    TextContent,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from tests import strategies
from tests.faces.chat.outgoing.vendors import VENDORS, broken, calls_of, texts_of

PROFILES = [*VENDORS, "STRICTEST"]
IDS = ["call_0", "functions.add:0", "a" * 60, "", None, "abcdefghi", "toolu_01", "café"]
NAMES = ["add", "shop.find", "", None, "n" * 70, "mit Leerzeichen"]
ARGUMENTS = ["{}", '{"a": 1}', '{"a": ', "", None, "[1]", "NaN", '"text"', '{"a": NaN}']
TEXTS = ["Hello", "", "\n\n", " ", "\xa0", "Yes."]

calls = st.builds(ToolExecutionRequest, st.sampled_from(IDS), st.sampled_from(NAMES), st.sampled_from(ARGUMENTS))
contents = st.one_of(st.builds(TextContent, st.sampled_from(TEXTS)), strategies.contents(storable=True))
messages = st.one_of(
    st.builds(SystemMessage, st.sampled_from(["Be brief.", "Be kind.", "\xa0"])),
    st.builds(
        UserMessage,
        st.one_of(
            st.sampled_from(TEXTS),
            st.lists(
                st.one_of(st.builds(TextContent, st.sampled_from(TEXTS)), strategies.contents(storable=True)),
                min_size=1,
            ),
        ),
        st.sampled_from([None, "ann", "Ann Lee", "<b>", " "]),
    ),
    st.builds(
        AiMessage,
        st.sampled_from([*TEXTS, None]),
        st.sampled_from([None, "Hm."]),
        st.lists(calls, max_size=3),
        st.sampled_from([{}, {}, {VENDOR_ATTRIBUTE: {"kind": "response"}}]),
    ),
    st.builds(
        ToolExecutionResultMessage,
        st.sampled_from(IDS),
        st.sampled_from(NAMES),
        st.one_of(st.sampled_from(TEXTS), st.lists(strategies.contents(storable=True), min_size=1)),
    ),
    strategies.messages(storable=True),
)
histories = st.lists(messages, max_size=14).map(lambda given: list(enumerate(given, start=3)))


def rules_of(profile: str) -> outgoing.Rules:
    return getattr(outgoing, profile)


def sent(history: list[tuple[int, ChatMessage]], profile: str) -> list[ChatMessage]:
    return for_vendor(history, rules_of(profile)).messages


@pytest.mark.parametrize("profile", PROFILES)
class TestAnyHistory:
    @given(histories)
    def test_nothing_is_refused(self, profile, history):
        assert broken(profile, sent(history, profile)) == []

    @given(histories)
    def test_chat_completions_can_express_it(self, profile, history):
        model = OpenAiChatModel("any", rules=rules_of(profile))

        made = [each for each in for_vendor(history, model.rules).messages if not isinstance(each, CustomMessage)]

        assert broken(profile, made) == []
        written = to_messages(made, model.rules)
        assert len(written) >= len(made)  # files of results are messages of their own
        if model.rules.alternates:
            roles = [each["role"] for each in written]
            assert not {("user", "user"), ("assistant", "assistant")} & {*pairwise(roles)}

    @given(histories)
    def test_what_was_made_fit_stays_as_it_is(self, profile, history):
        once = sent(history, profile)

        again = for_vendor(list(enumerate(once)), rules_of(profile))

        assert all(first is second for first, second in zip(once, again.messages, strict=True))
        assert again.changes == ()

    @given(histories)
    def test_what_is_not_changed_is_not_noted(self, profile, history):
        made = for_vendor(history, rules_of(profile))

        fitted = [each for each in made.messages if not isinstance(each, CustomMessage)]
        words = "\n\n".join(text for each in fitted for text in texts_of(each))
        changed = {sequence for sequence, _ in made.changes}
        for sequence, message in history:
            if sequence not in changed and not isinstance(message, CustomMessage):
                assert all(text in words for text in texts_of(message) if text.strip())

    @given(histories, st.integers(0, 14))
    def test_it_does_not_depend_on_what_has_left(self, profile, history, leaving):
        """Turns leave whole, as windows let them; what stays has the texts, ids, names and arguments that it had."""
        left = [each for each in history[leaving:] if not isinstance(each[1], ToolExecutionResultMessage)]
        whole = [each for each in history if not isinstance(each[1], ToolExecutionResultMessage)]

        before, after = sent(whole, profile), sent(left, profile)

        made = calls_of(after)
        had = calls_of(before)[len(calls_of(before)) - len(made) :]
        given = [each.id for each in calls_of([message for _, message in whole])]
        for mine, its, own in zip(made, had, given[len(given) - len(made) :], strict=True):
            assert (mine.name, mine.arguments) == (its.name, its.arguments)
            assert mine.id == its.id or given.count(own) > 1  # which was made apart from one that has left
        words_after, words_before = words_of(after), words_of(before)
        assert words_after == [] or words_before[-len(words_after) :] == words_after

    @given(histories, st.integers(0, 14))
    def test_it_does_not_depend_on_what_comes(self, profile, history, stays):
        """Apart from results, which have their place: a conversation that goes on is sent as it was, and more."""
        made = for_vendor(history[:stays], rules_of(profile))
        whole = sent(history, profile)

        calls = calls_of(made.messages)
        assert calls_of(whole)[: len(calls)] == calls


def words_of(messages: list[ChatMessage]) -> list[str]:
    """Return the paragraphs of those messages that are not made, or merged because of others."""
    inserted = {"[The conversation so far:]", "Go on.", "[The answer ended here.]"}
    texts = [text for each in messages if isinstance(each, UserMessage | AiMessage) for text in texts_of(each)]
    words = [word for text in texts for word in text.split("\n\n") if word.strip() and word not in inserted]
    return words[1:]  # the first may have been merged with what has left


class TestWhatFits:
    @pytest.mark.parametrize("profile", [each for each in PROFILES if each != "WITHOUT_TOOLS"])
    def test_a_history_that_fits_is_passed_on_as_it_is(self, profile):
        call = ToolExecutionRequest("abcdefghi", "add", '{"a": 1}')
        history = [
            SystemMessage("Be brief."),
            UserMessage("1 + 1?"),
            AiMessage(None if profile != "OPEN_MODEL" else "", None, [call]),
            ToolExecutionResultMessage("abcdefghi", "add", "2"),
            AiMessage("2."),
            UserMessage("Thanks."),
        ]

        made = for_vendor(list(enumerate(history)), rules_of(profile))

        assert all(first is second for first, second in zip(made.messages, history, strict=True))
        assert made.changes == ()
        assert made.sequences == [0, 1, 2, 3, 4, 5]

    def test_a_class_of_a_site_is_given_custom_messages_which_others_leave_out(self):
        own = CustomMessage({"kind": "own"})
        history = [(1, UserMessage("Hi.")), (2, own), (3, AiMessage("Hi.")), (4, UserMessage("?"))]

        assert for_vendor(history, STRICTEST).messages[1] is own

    def test_ids_are_the_same_in_every_process(self):
        code = (
            "from chatmemory_django.chat.outgoing import MISTRAL, for_vendor\n"
            "from chatmemory_django.messages import *\n"
            "call = AiMessage(None, None, [ToolExecutionRequest('functions.add:0', 'add', '{}')])\n"
            "print(for_vendor([(7, call)], MISTRAL).messages[1].tool_execution_requests[0].id)"
        )
        run = partial(subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True, check=True)
        made = {run(env={**os.environ, "PYTHONHASHSEED": seed}).stdout for seed in ("1", "2")}

        assert made == {"vLZdqGdBe\n"}

    def test_images_beyond_the_most_become_notes_from_the_first_on_and_many_at_a_time(self):
        image = ImageContent(Image(base64_data="QUJD", mime_type="image/png"))
        history = [(number, UserMessage([TextContent("?"), image])) for number in range(1, 103)]

        made = for_vendor(history, outgoing.ANTHROPIC)

        assert [sequence for sequence, change in made.changes if change is Difference.FILE] == list(range(1, 21))
        assert made.messages[0].contents[1] == TextContent("[image (image/png, 3 bytes) left out]")
        assert made.messages[20] is history[20][1]
