"""What is sent while an answer runs, individually and compared with the rules, one property each, for any memory."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmemory_django.chat.answers.sent import Shortened, to_send
from chatmemory_django.chat.answers.too_long import AnswerTooLongError, QuestionTooLongError
from chatmemory_django.core.clearing import ClearToolResults
from chatmemory_django.core.tool_calls import UNKNOWN
from chatmemory_django.core.windows import Window, to_entry
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
from tests.estimators import ADDITIVE_WORDS, JOINT, WORDS, words

SYSTEM, OTHER, SUMMARY = SystemMessage("be brief"), SystemMessage("be long"), SystemMessage("they greeted")
Q, A, ASKED = UserMessage("hello there"), AiMessage("good day"), UserMessage("what is it")


def call(*ids: str) -> AiMessage:
    return AiMessage(tool_execution_requests=[ToolExecutionRequest(each, "look", "{}") for each in ids])


def result(id: str, words: int = 1) -> ToolExecutionResultMessage:
    return ToolExecutionResultMessage(id, "look", "found " * words)


def unknown(id: str, text: str = UNKNOWN) -> ToolExecutionResultMessage:
    return ToolExecutionResultMessage(id, "look", text, is_error=True)


def send(earlier, own, window, **options):
    """Return what is sent of *earlier* messages and the answer's *own*, whose keys are their places in both."""
    entries = [to_entry(key, message) for key, message in enumerate([*earlier, *own])]
    return to_send(entries, len(earlier), window, **options)


def pinned(earlier, own, pins, window, **options):
    """Return what is sent if the messages with the indexes *pins* are pinned."""
    entries = [to_entry(key, message) for key, message in enumerate([*earlier, *own])]
    for key in pins:
        entries[key].is_pinned = True
    return to_send(entries, len(earlier), window, **options)


def messages(limit: int, evict_to: int | None = None) -> Window:
    return Window(limit, evict_to=evict_to)


def tokens(limit: int, estimator=ADDITIVE_WORDS, evict_to: int | None = None) -> Window:
    return Window(limit, estimator, evict_to=evict_to)


class TestOrder:
    @pytest.mark.parametrize(
        ("earlier", "sent"),
        [
            ([SYSTEM, Q, A], [SYSTEM, Q, A]),
            ([Q, A, SYSTEM], [SYSTEM, Q, A]),
            ([SYSTEM, Q, OTHER, A], [OTHER, SYSTEM, Q, A]),
            ([Q, A], [Q, A]),
        ],
    )
    def test_the_last_system_message_comes_first(self, earlier, sent):
        assert send(earlier, [ASKED], messages(10)).messages == [*sent, ASKED]

    def test_a_system_message_that_was_changed_with_the_question_comes_first_too(self):
        assert send([Q, A, SYSTEM], [ASKED], messages(10)).messages[0] == SYSTEM

    def test_the_summary_follows_the_system_message_and_is_none(self):
        assert send([SUMMARY, Q, SYSTEM], [ASKED], messages(10), summary_key=0).messages == [SYSTEM, SUMMARY, Q, ASKED]
        assert send([SUMMARY, Q], [ASKED], messages(10), summary_key=0).messages == [SUMMARY, Q, ASKED]

    def test_the_context_is_in_front_of_the_contents_of_the_question(self):
        asked = UserMessage([TextContent("what is it"), ImageContent(Image(url="https://x.example/"))], name="Ann")

        sent = send([Q, A], [asked, call("1"), result("1")], messages(10), context="It is Monday.").messages

        assert sent[2] == UserMessage([TextContent("It is Monday."), *asked.contents], name="Ann")
        assert sent[3:] == [call("1"), result("1")]

    def test_without_a_question_the_context_is_a_message_of_its_own(self):
        assert send([Q], [A], messages(10), context="It is Monday.").messages == [Q, UserMessage("It is Monday."), A]

    def test_a_memory_that_starts_on_a_user_does_so(self):
        memory = [SYSTEM, A, Q, A]
        assert send(memory, [ASKED], messages(10), starts_on_user=True).messages == [SYSTEM, Q, A, ASKED]
        assert send([A], [ASKED], messages(10), starts_on_user=True).messages == [ASKED]


class TestResults:
    def test_they_are_sent_in_the_order_of_the_calls(self):
        sent = send([], [ASKED, call("1", "2"), result("2"), result("1")], messages(10)).messages
        assert sent[1:] == [call("1", "2"), result("1"), result("2")]

    def test_a_call_without_one_has_an_unknown_outcome_whether_it_is_of_this_answer_or_of_an_earlier_one(self):
        sent = send([Q, call("1", "2"), result("2")], [ASKED, call("3")], messages(10)).messages
        assert sent == [Q, call("1", "2"), unknown("1"), result("2"), ASKED, call("3"), unknown("3")]

    def test_a_call_can_wait_for_something(self):
        sent = send([], [ASKED, call("1", "2")], messages(10), pending={(1, 1): "It waits."}).messages
        assert sent[2:] == [unknown("1"), unknown("2", "It waits.")]

    def test_one_that_came_late_follows_its_call(self):
        sent = send([Q, call("1")], [ASKED, result("1")], messages(10)).messages
        assert sent == [Q, call("1"), result("1"), ASKED]

    def test_one_without_a_call_is_left_out(self):
        assert send([result("0"), Q, A], [ASKED], messages(10))[:3] == ([Q, A, ASKED], 0, {})


class TestRoom:
    def test_a_window_of_messages_may_be_exceeded_by_the_answer(self):
        own = [ASKED, call("1", "2"), result("1"), result("2")]
        assert send([SYSTEM, Q, A], own, messages(3))[:3] == ([SYSTEM, *own], 2, {})

    def test_calls_leave_with_their_results_made_or_not(self):
        earlier = [Q, call("1", "2"), result("2"), A]
        assert send(earlier, [ASKED], messages(4))[:3] == ([A, ASKED], 3, {})

    def test_pinned_messages_stay_in_their_order_when_others_leave(self):
        earlier = [SYSTEM, SUMMARY, Q, A, Q, A]
        assert pinned(earlier, [ASKED], [3, 4], messages(5), summary_key=1)[:2] == ([SYSTEM, SUMMARY, A, Q, ASKED], 2)
        assert pinned(earlier, [ASKED], [3], messages(3), summary_key=1).messages == [SYSTEM, A, ASKED]

    def test_a_pinned_call_stays_with_its_results_made_or_not(self):
        earlier = [Q, call("1", "2"), result("2"), Q, A]
        sent = pinned(earlier, [ASKED, call("3"), result("3")], [1, 2], messages(7))
        assert sent.messages == [call("1", "2"), unknown("1"), result("2"), A, ASKED, call("3"), result("3")]

    def test_pins_that_take_more_than_half_of_the_window_are_left_out_the_oldest_first(self):
        assert pinned([Q, A, Q], [ASKED], [0, 1, 2], messages(2))[:2] == ([Q, ASKED], 2)

    def test_a_question_that_does_not_fit_beside_the_pins_is_refused_and_not_the_answer(self):
        long = UserMessage("word " * 20)
        assert send([A], [long], tokens(30)).messages == [long]
        with pytest.raises(QuestionTooLongError) as caught:
            pinned([A], [long], [0], tokens(30))
        assert (caught.value.needed, caught.value.beside) == (31, 8)

    def test_a_pinned_result_is_not_cleared_for_the_answer(self):
        window = Window(10, clears=ClearToolResults(keep=0))
        earlier = [Q, call("1"), result("1", 60), Q, call("2"), result("2", 60), Q]
        sent = pinned(earlier, [ASKED, *[A] * 5], [1, 2], window).messages
        assert result("1", 60) in sent
        assert result("2", 60) not in sent

    def test_the_summary_leaves_last(self):
        assert send([SYSTEM, SUMMARY, Q], [ASKED], messages(3), summary_key=1).messages == [SYSTEM, SUMMARY, ASKED]
        assert send([SYSTEM, SUMMARY, Q], [ASKED], messages(2), summary_key=1).messages == [SYSTEM, ASKED]

    def test_the_lower_mark_holds_even_if_no_earlier_message_stays(self):
        assert send([Q, A, Q, A], [ASKED], messages(4, evict_to=2))[:3] == ([A, ASKED], 3, {})
        assert send([Q, A], [ASKED, call("1"), result("1")], messages(4, evict_to=1)).left_out == 2

    def test_with_a_lower_mark_requests_begin_with_the_same_messages_until_the_limit_is_exceeded_again(self):
        earlier, own = [UserMessage(str(number)) for number in range(9)], [ASKED, A, A, A, A]
        window = messages(10, evict_to=6)

        begins = [send(earlier, own[:size], window).messages[0] for size in range(1, 6)]

        assert begins == [UserMessage("0"), *[UserMessage("5")] * 4]

    def test_counted_are_the_context_the_tools_and_what_is_sent_in_addition(self):
        # 3 tokens are the list's and 3 each message's: hello there 5, good day 5, what is it 6.
        assert send([Q, A], [ASKED], tokens(19)).left_out == 0
        assert send([Q, A], [ASKED], tokens(18)).left_out == 1
        assert send([Q, A], [ASKED], tokens(19), overhead=1).left_out == 1
        assert send([Q, A], [ASKED], tokens(19), context="Monday").left_out == 1
        assert send([Q, A], [ASKED], tokens(19), extra=lambda message: int(message is A)).left_out == 1
        assert send([Q, A], [ASKED], tokens(19, JOINT)).left_out == 1  # 4 more for a list of three
        assert send([Q, A], [ASKED], messages(3), overhead=99, extra=lambda _: 99).left_out == 0


class TestLongResults:
    def test_one_takes_at_most_a_quarter_of_a_window_of_tokens(self):
        sent = send([Q], [ASKED, call("1"), result("1", 900)], tokens(400))

        assert sent.messages[0] == Q
        assert ADDITIVE_WORDS.estimate_token_count_in_message(sent.messages[-1]) <= 100
        assert sent.messages[-1].text.startswith("found found ")
        assert sent.messages[-1].text.endswith(" characters left out]")
        assert sent.shortened == {3: Shortened(sent.shortened[3].sent, 903)}
        assert 60 <= sent.shortened[3].sent <= 100

    def test_one_of_an_earlier_answer_too(self):
        assert set(send([call("1"), result("1", 900)], [ASKED], tokens(400)).shortened) == {1}

    def test_the_bound_can_be_given(self):
        own = [ASKED, call("1"), result("1", 200)]
        assert send([], own, tokens(400), max_result_tokens=300).shortened == {}
        assert send([], own, tokens(4000), max_result_tokens=50).shortened[2].sent <= 50

    def test_in_a_window_of_messages_only_a_given_bound_holds_with_four_characters_a_token(self):
        own = [ASKED, call("1"), result("1", 400)]  # 2,400 characters
        assert send([], own, messages(9)).shortened == {}
        assert send([], own, messages(9), max_result_tokens=600).shortened == {}
        assert len(send([], own, messages(9), max_result_tokens=100).messages[-1].text) <= 400

    def test_a_file_that_is_too_large_becomes_a_note(self):
        class Images(type(ADDITIVE_WORDS)):
            def estimate_token_count_in_message(self, message):
                images = [each for each in getattr(message, "contents", ()) if isinstance(each, ImageContent)]
                return super().estimate_token_count_in_message(message) + 500 * len(images)

        image = ToolExecutionResultMessage("1", "look", [ImageContent(Image(url="https://x.example/"))])

        sent = send([], [ASKED, call("1"), image], tokens(400, Images()))

        assert sent.messages[-1].text == "[image left out]"

    def test_the_largest_are_shortened_first_and_no_more_than_must_be(self):
        own = [ASKED, call("1", "2", "3"), result("1", 40), result("2", 90), result("3", 95)]
        assert send([Q], own, tokens(260), max_result_tokens=100).shortened == {}
        assert send([Q], own, tokens(240), max_result_tokens=100).left_out == 1
        assert set(send([Q], own, tokens(220), max_result_tokens=100).shortened) == {5}
        assert set(send([Q], own, tokens(150), max_result_tokens=100).shortened) == {4, 5}

    def test_their_rows_stay_whole(self):
        entries = [to_entry(0, ASKED), to_entry(1, call("1")), to_entry(2, result("1", 900))]
        to_send(entries, 0, tokens(400))
        assert entries[2].message == result("1", 900)


class TestTooLong:
    def test_a_question_that_cannot_fit_is_refused_with_what_it_needs_and_what_there_is(self):
        with pytest.raises(QuestionTooLongError) as caught:
            send([SYSTEM, Q], [UserMessage("word " * 90)], tokens(100), context="It is Monday.", overhead=10)

        assert (caught.value.needed, caught.value.limit) == (3 + 5 + 96 + 10, 100)
        assert "needs 114 tokens, of which 21 are for" in str(caught.value)
        assert "window has 100" in str(caught.value)

    def test_it_is_not_refused_for_what_was_written_before(self):
        assert send([Q] * 50, [ASKED], tokens(30)).messages[-1] == ASKED

    def test_calls_that_cannot_fit_are_named_as_what_is_too_long(self):
        own = [ASKED, call(*map(str, range(30))), *(result(str(number), 40) for number in range(30))]

        with pytest.raises(AnswerTooLongError, match=r"calls of tools and their results.* the memory's window has 200"):
            send([Q], own, tokens(200))

        assert not issubclass(AnswerTooLongError, QuestionTooLongError)

    def test_many_results_fit_if_they_are_short_enough_once_shortened(self):
        own = [ASKED, call(*"abcdefgh"), *(result(each, 400) for each in "abcdefgh")]
        sent = send([Q], own, tokens(400))
        assert len(sent.shortened) == 8
        assert ADDITIVE_WORDS.estimate_token_count_in_messages(sent.messages) <= 400


class Case(NamedTuple):
    """A memory with an answer that has come some way, and how it is to be sent."""

    earlier: list
    rounds: list[list]
    window: Window
    options: dict


@st.composite
def cases(draw) -> Case:
    number = iter(range(1000))

    def turn(rounds: int) -> list[list]:
        made = []
        for _ in range(rounds):
            ids = [str(next(number)) for _ in range(draw(st.integers(1, 3)))]
            found = [result(each, draw(st.sampled_from([1, 30, 90, 400]))) for each in ids]
            present = [each for each in found if draw(st.integers(0, 3))]
            made.append([call(*ids), *draw(st.permutations(present))])
        return made

    def question() -> UserMessage:
        return UserMessage(f"question{next(number)} " * draw(st.sampled_from([1, 5, 40])))

    earlier: list = [SYSTEM] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(0, 3))):
        earlier += [question(), *(each for made in turn(draw(st.integers(0, 2))) for each in made)]
        earlier += [AiMessage(f"answer{next(number)}")] if draw(st.booleans()) else []
        earlier += [SystemMessage(f"be {next(number)}")] if draw(st.integers(0, 5)) == 0 else []
    summary = len(earlier) if draw(st.booleans()) else None
    earlier += [] if summary is None else [SUMMARY]
    estimator = draw(st.sampled_from([None, WORDS, ADDITIVE_WORDS, JOINT]))
    limit = draw(st.integers(1, 12)) if estimator is None else draw(st.sampled_from([60, 150, 300, 600, 2000]))
    evict_to = draw(st.sampled_from([None, limit // 2 or None])) if limit > 1 else None
    options = {
        "summary_key": summary,
        "context": draw(st.sampled_from([None, "It is Monday."])),
        "overhead": draw(st.sampled_from([0, 7])),
        "extra": draw(st.sampled_from([lambda _: 0, lambda message: 5 * isinstance(message, AiMessage)])),
    }
    rounds = [[question()], *turn(draw(st.integers(0, 4)))]
    return Case(earlier, rounds, Window(limit, estimator, evict_to=evict_to), options)


class TestAnyMemory:
    @given(cases())
    def test_the_rules_hold(self, case):
        own, system = [each for made in case.rounds for each in made], present_system(case)
        needed = total_of(case, [*system, with_context(case, own[0])])
        if case.window.estimator is not None and needed > case.window.limit:
            with pytest.raises(QuestionTooLongError) as caught:
                send(case.earlier, own, case.window, **case.options)
            assert (caught.value.needed, caught.value.limit) == (needed, case.window.limit)
            return
        try:
            sent = send(case.earlier, own, case.window, **case.options)
        except AnswerTooLongError:
            assert case.window.estimator is not None
            shortest = [each for made in with_results(own[1:]) for each in at_their_shortest(made)]
            assert total_of(case, [*system, with_context(case, own[0]), *shortest]) > case.window.limit
            return

        start = sent.messages.index(with_context(case, own[0]))
        assert sent.messages[: len(system)] == system
        assert SUMMARY not in sent.messages or sent.messages[len(system)] == SUMMARY
        assert [each for each in sent.messages[start + 1 :] if isinstance(each, AiMessage)] == own_calls(case)
        assert_each_call_has_its_result(sent.messages)
        if case.window.estimator is not None:
            assert total_of(case, sent.messages) <= case.window.limit
        quarter = case.window.limit // 4
        for key, (left, of) in sent.shortened.items():
            assert left < of
            assert of > max(quarter, 32) or (key >= len(case.earlier) and start == len(system))
        assert send(case.earlier, own, case.window, **case.options) == sent

    @given(cases())
    def test_where_nothing_has_to_be_shortened_the_messages_are_those_of_the_rules_on_lists(self, case):
        own = [each for made in case.rounds for each in made]
        expected = by_the_rules(case)
        if case.window.estimator is None or total_of(case, expected) <= case.window.limit:
            sent = send(case.earlier, own, case.window, **case.options, max_result_tokens=10_000)
            assert sent.messages == expected
            assert sent.shortened == {}

    @given(cases())
    def test_from_one_request_to_the_next_nothing_comes_back_and_nothing_changes_without_need(self, case):
        before = None
        for size in range(1, len(case.rounds) + 1):
            own = [each for made in case.rounds[:size] for each in made]
            try:
                sent = send(case.earlier, own, case.window, **case.options)
            except (QuestionTooLongError, AnswerTooLongError):
                return
            if before is not None:
                assert sent.left_out >= before.left_out
                for key, (left, of) in before.shortened.items():
                    assert sent.shortened.get(key, (0, of))[0] <= left
                changed = [key for key in sent.shortened if sent.shortened[key] != before.shortened.get(key)]
                known = [key for key in changed if key < len(case.earlier) + len(own) - len(case.rounds[size - 1])]
                assert not known or sent.messages[len(present_system(case))] == with_context(case, own[0])
            before = sent


def present_system(case: Case) -> list[SystemMessage]:
    systems = [each for key, each in enumerate(case.earlier) if isinstance(each, SystemMessage) and each is not SUMMARY]
    return systems[-1:]


def with_context(case: Case, question: UserMessage) -> UserMessage:
    context = case.options["context"]
    return question if context is None else UserMessage([TextContent(context), *question.contents])


def by_the_rules(case: Case) -> list:
    """The rules on lists, as slow as they are simple."""
    window, system = case.window, present_system(case)
    summary = [SUMMARY] if SUMMARY in case.earlier else []
    left = [each for each in with_results(case.earlier) if each[0] not in [*system, SUMMARY]]
    asked, *rounds = (each for made in case.rounds for each in with_results(made))
    sent: list = []
    for message in [None, with_context(case, asked[0]), *(each for made in rounds for each in made)]:
        sent += [] if message is None else [message]
        total = total_of(case, [*system, *summary, *(each for group in left for each in group), *sent])
        is_over = total > window.limit
        while total > window.limit and left:
            total -= cost_of(case, left.pop(0))
        if total > window.limit and summary:
            total -= cost_of(case, summary)
            summary = []
        while is_over and window.evict_to and total > window.evict_to and len(left) > (not sent):
            total -= cost_of(case, left.pop(0))
    return [*system, *summary, *(each for group in left for each in group), *sent]


def with_results(messages: list) -> list[list]:
    """Return each message that is no result, with one for each of its calls."""
    found = {each.id: each for each in messages if isinstance(each, ToolExecutionResultMessage)}
    others = [each for each in messages if not isinstance(each, ToolExecutionResultMessage)]
    ids = [[made.id for made in getattr(each, "tool_execution_requests", ())] for each in others]
    return [
        [each, *(found.get(made, unknown(made)) for made in called)] for each, called in zip(others, ids, strict=True)
    ]


def at_their_shortest(messages: list) -> list:
    """Return *messages* with notes in place of results: … [2,400 characters left out]."""
    return [
        result(each.id, min(5, words(each.text)))
        if isinstance(each, ToolExecutionResultMessage) and not each.is_error
        else each
        for each in messages
    ]


def cost_of(case: Case, group: list) -> int:
    extra = 0 if case.window.estimator is None else sum(map(case.options["extra"], group))
    return sum(map(case.window.cost, group)) + extra


def own_calls(case: Case) -> list[AiMessage]:
    return [made[0] for made in case.rounds[1:]]


def total_of(case: Case, sent: list) -> int:
    extra = 0 if case.window.estimator is None else case.options["overhead"] + sum(map(case.options["extra"], sent))
    return case.window.total(sent) + extra


def assert_each_call_has_its_result(sent: list) -> None:
    waiting: list[str] = []
    for message in sent:
        if isinstance(message, ToolExecutionResultMessage):
            assert message.id == waiting.pop(0)
        else:
            assert not waiting
            waiting = [each.id for each in getattr(message, "tool_execution_requests", ())]
    assert not waiting
