"""Functions of a site that make a text for one answer, called with what they name."""

import asyncio
import threading
from functools import partial, wraps

import pytest
from django.utils.translation import gettext_lazy

from chatmemory_django.chat.answers.context import atext_of, checked, text_of
from chatmemory_django.messages import UserMessage

VALUES = {"memory_id": "c", "owner": "Ann", "request": None, "question": UserMessage("Where is my order?")}


def text(*functions) -> str | None:
    """Return what both ways to call *functions* return, which must be the same."""
    made = [checked(each, "context") for each in functions]
    found = text_of(made, VALUES)
    assert asyncio.run(atext_of(made, VALUES)) == found
    return found


def refused(function, where: str = "context") -> str:
    with pytest.raises(TypeError) as caught:
        checked(function, where)
    return str(caught.value)


class Looks:
    def __call__(self, question, *, owner):
        return f"{owner}: {question.single_text}"

    def method(self, memory_id):
        return memory_id

    async def later(self, memory_id):
        return memory_id


class LooksLater:
    async def __call__(self, owner):
        return owner


def logged(function):
    @wraps(function)
    def call(*args, **kwargs):
        return function(*args, **kwargs)

    return call


def limited(question, limit):
    return question.single_text[:limit]


async def later(owner):
    await asyncio.sleep(0)
    return owner


class TestParameters:
    @pytest.mark.parametrize(
        ("function", "made"),
        [
            (lambda: "Monday", "Monday"),
            (lambda owner: f"For {owner}", "For Ann"),
            (lambda memory_id, owner=None: f"{memory_id} {owner}", "c Ann"),
            (lambda question, request: f"{question.single_text} {request}", "Where is my order? None"),
            (lambda **values: " ".join(values), "memory_id owner request question"),
            (lambda owner, **others: " ".join(others), "memory_id request question"),
            (lambda *args: str(args), "()"),
            (Looks(), "Ann: Where is my order?"),
            (Looks().method, "c"),
            (partial(limited, limit=5), "Where"),
            (partial(lambda limit, owner: f"{owner} {limit}", 5), "Ann 5"),
            (partial(lambda owner, memory_id: f"{owner} {memory_id}", owner="Bob"), "Bob c"),
            (partial(lambda **values: values["owner"], owner="Bob"), "Bob"),
            (logged(lambda memory_id: f"In {memory_id}"), "In c"),
        ],
    )
    def test_a_function_is_given_what_it_names_and_nothing_else(self, function, made):
        assert text(function) == made

    @pytest.mark.parametrize(
        ("function", "parameter"),
        [
            (lambda user: user, "user"),
            (lambda subject=None: subject, "subject"),
            (lambda owner, users, **others: users, "users"),
            (lambda owner, /: owner, "owner"),
            (limited, "limit"),
            ([].append, "object"),
        ],
    )
    def test_another_name_is_refused_when_the_assistant_is_made(self, function, parameter):
        assert f"{parameter!r}; it can be given memory_id, owner, request, question, by name" in refused(function)

    def test_the_error_names_the_argument_and_the_function(self):
        assert refused(limited, "system_message").startswith("system_message: limited has the parameter 'limit'")

    def test_what_is_not_a_function_is_refused(self):
        assert refused("Monday") == "context must be a function, not 'Monday'."

    def test_a_function_without_a_signature_is_refused(self):
        assert "has no signature" in refused(type)


class TestTexts:
    def test_they_are_joined_by_a_blank_line_and_blank_ones_are_left_out(self):
        assert text(lambda: "one", lambda: None, lambda: "", lambda: " \n", lambda: "two") == "one\n\ntwo"

    def test_there_may_be_none(self):
        assert text() is None
        assert text(lambda: None, lambda: " ") is None

    def test_a_lazy_translation_is_a_text(self):
        assert text(lambda: gettext_lazy("Yes")) == "Yes"

    @pytest.mark.parametrize("returned", [3, ["Monday"], b"Monday", UserMessage("Monday")])
    def test_another_type_is_an_error_that_names_the_function_and_the_type(self, returned):
        def weather():
            return returned

        with pytest.raises(TypeError, match=rf"context: .*weather returned {type(returned).__name__}; it must"):
            text_of([checked(weather, "context")], VALUES)


class TestAsync:
    @pytest.mark.parametrize(
        ("function", "made"),
        [(later, "Ann"), (partial(later, owner="Bob"), "Bob"), (LooksLater(), "Ann"), (Looks().later, "c")],
    )
    def test_asynchronous_functions_are_awaited(self, function, made):
        assert text(function) == made

    def test_what_a_function_returns_may_be_awaitable(self):
        assert text(lambda owner: later(owner)) == "Ann"

    def test_functions_that_are_not_async_run_in_a_thread(self):
        threads = []
        function = checked(lambda: threads.append(threading.current_thread()), "context")

        asyncio.run(atext_of([function], VALUES))

        assert threads != [threading.current_thread()]

    def test_asynchronous_ones_run_concurrently(self):
        both = asyncio.Barrier(2)

        async def wait():
            await both.wait()
            return "met"

        async def meet():
            return await asyncio.wait_for(atext_of([checked(wait, "context")] * 2, VALUES), timeout=60)

        assert asyncio.run(meet()) == "met\n\nmet"
