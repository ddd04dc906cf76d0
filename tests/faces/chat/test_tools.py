"""Tools: the specification that a model reads of a function, and the results of its calls."""

import asyncio
import concurrent.futures
import functools
import json
from datetime import date
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Literal

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import ObjectDoesNotExist
from django.db import OperationalError
from django.utils.functional import lazystr
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from chatmemory_django.chat.tools import Tool, ToolError
from chatmemory_django.db.threads import in_background
from chatmemory_django.messages import Image, ImageContent, TextContent, ToolExecutionRequest

if TYPE_CHECKING:
    from django.http import HttpRequest

PATIENCE = 20
"""Seconds after which a test gives up waiting."""


class Unit(Enum):
    CELSIUS = "celsius"
    KELVIN = "kelvin"


class Place(BaseModel):
    name: str
    country: str = "jp"


def forecast(
    place: Place, day: date, unit: Unit = Unit.CELSIUS, *, detail: Literal["low", "high"] = "low", owner: object = None
) -> str:
    """
    Return the forecast for a place.

    It is made up.

    Args:
        place: Where.
        day: When.
        unit: In which unit.
    """
    return f"{place.name} ({place.country}) on {day:%d.%m.} in {unit.value}, {detail}, for {owner}"


def call(function, arguments: str | None = "{}", **context: object):
    """Return the result of a call, which must be the same sync and async."""
    tool = Tool(function, description="Do it.")
    request = ToolExecutionRequest("1", tool.name, arguments)
    result = tool.call(request, context)
    assert asyncio.run(acalled(tool, request, context)) == result
    assert (result.id, result.tool_name) == ("1", tool.name)
    return result


async def acalled(tool, request, context):
    """Return the result of a call in a request, which must be the same in the background."""
    async with asyncio.timeout(PATIENCE):
        result = await tool.acall(request, context)
        with in_background():
            assert await tool.acall(request, context) == result
    return result


def properties_of(function) -> dict:
    return Tool(function, description="Do it.").specification.parameters["properties"]


class TestSpecification:
    def test_it_is_derived_from_the_signature_and_the_docstring(self):
        specification = Tool(forecast).specification

        assert specification.name == "forecast"
        assert specification.description == "Return the forecast for a place.\n\nIt is made up."
        properties = specification.parameters["properties"]
        assert list(properties) == ["place", "day", "unit", "detail"]
        assert specification.parameters["required"] == ["place", "day"]
        assert properties["day"] == {"description": "When.", "format": "date", "title": "Day", "type": "string"}
        assert properties["detail"]["enum"] == ["low", "high"]
        assert specification.parameters["additionalProperties"] is False

    @pytest.mark.parametrize(
        "docstring",
        [
            "Add.\n\nArgs:\n    a: One.\n    b: Other.",
            "Add.\n\n:param a: One.\n:param b: Other.",
            "Add.\n\nParameters\n----------\na : int\n    One.\nb : int\n    Other.",
        ],
        ids=["Google", "Sphinx", "NumPy"],
    )
    def test_docstrings_of_every_style_describe_parameters(self, docstring):
        def add(a: int, b: int) -> int:
            """Do it."""
            return a + b

        add.__doc__ = docstring

        properties = Tool(add).specification.parameters["properties"]
        assert [each["description"] for each in properties.values()] == ["One.", "Other."]

    def test_pydantic_annotations_apply(self):
        def wait(minutes: Annotated[int, Field(ge=1, le=60, description="How long.")]) -> str:
            """Do it."""
            return f"{minutes} minutes"

        assert Tool(wait).specification.parameters["properties"]["minutes"]["maximum"] == 60
        assert call(wait, '{"minutes": 61}').is_error

    def test_a_description_in_an_annotation_comes_before_the_docstrings(self):
        def wait(
            minutes: Annotated[int, Field(description="How long.")], reason: str, place: str = Field("here")
        ) -> str:
            """
            Wait.

            Args:
                minutes: Some minutes.
                reason: Why.
                place: Where.
            """
            return f"{minutes} minutes {place}: {reason}"

        assert [each["description"] for each in properties_of(wait).values()] == ["How long.", "Why.", "Where."]

    def test_a_field_as_default_describes_the_parameter(self):
        def wait(minutes: int = Field(ge=1, description="How long."), place: str = Field("here", max_length=9)) -> str:
            """Do it."""
            return f"{minutes} minutes {place}"

        parameters = Tool(wait).specification.parameters

        assert parameters["required"] == ["minutes"]
        assert parameters["properties"]["minutes"]["description"] == "How long."
        assert parameters["properties"]["place"]["default"] == "here"
        assert call(wait, '{"minutes": 3}').text == "3 minutes here"
        assert call(wait, '{"place": "there"}').text == "The arguments are invalid: minutes: Field required"

    @pytest.mark.parametrize("name", ["_city", "json", "copy", "model_dump", "model_config", "schema", "__class__"])
    def test_parameters_can_have_any_name(self, name):
        scope = {}
        exec(f"def look({name}: str): return {name}", scope)

        assert properties_of(scope["look"])[name]["type"] == "string"
        assert call(scope["look"], json.dumps({name: "a tree"})).text == "a tree"

    def test_what_the_assistant_fills_in_may_be_annotated_for_type_checkers_only(self):
        def who(name: "str", request: "HttpRequest") -> "HttpRequest":
            """Do it."""
            return f"{name} by {request}"

        assert list(properties_of(who)) == ["name"]
        assert call(who, '{"name": "Ann"}', request="HTTP").text == "Ann by HTTP"

    def test_another_annotation_for_type_checkers_only_is_refused_by_name(self):
        def who(page: "HttpRequest") -> str:
            """Do it."""
            return str(page)

        with pytest.raises(TypeError, match=r"^The tool 'who' has an annotation .* name 'HttpRequest' is not defined"):
            Tool(who)

    def test_a_lazy_description_is_a_text(self):
        assert type(Tool(forecast, description=lazystr("The weather.")).specification.description) is str

    def test_name_and_description_can_be_overridden(self):
        specification = Tool(forecast, name="weather", description="The weather.").specification

        assert (specification.name, specification.description) == ("weather", "The weather.")

    def test_it_is_json(self):
        assert json.loads(json.dumps(dict(Tool(forecast).specification.parameters)))

    @pytest.mark.parametrize("function", [lambda *a: "", lambda **a: "", lambda a, /: ""], ids=["*", "**", "/"])
    def test_positional_only_parameters_are_refused(self, function):
        with pytest.raises(TypeError, match="models can only pass arguments by name"):
            Tool(function)

    def test_a_function_without_a_signature_is_refused(self):
        with pytest.raises(TypeError, match=r"^The tool 'max' has no signature"):
            Tool(max)

    def test_methods_are_supported(self):
        class Shop:
            def price(self, item: str) -> str:
                return f"{item}: 3"

        assert call(Shop().price, '{"item": "tea"}').text == "tea: 3"

    @pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
    def test_callable_objects_are_supported(self, is_async):
        class Shop:
            """Sells."""

            def __call__(self, item: str) -> str:
                return f"{item}: 3"

        class AsyncShop:
            """Sells."""

            async def __call__(self, item: str) -> str:
                return f"{item}: 3"

        shop = AsyncShop() if is_async else Shop()

        assert Tool(shop).specification.description == "Sells."
        assert call(shop, '{"item": "tea"}').text == "tea: 3"

    def test_a_model_cannot_change_what_a_partial_binds(self):
        def price(item: str, currency: str, *, discount: int = 0) -> str:
            """Return the price of an item."""
            return f"{item}: 3 {currency} -{discount}"

        bound = functools.partial(price, currency="EUR")

        assert (Tool(bound).name, Tool(bound).specification.description) == ("price", "Return the price of an item.")
        assert list(properties_of(bound)) == ["item", "discount"]
        assert call(bound, '{"item": "tea"}').text == "tea: 3 EUR -0"
        assert call(bound, '{"item": "tea", "currency": "USD"}').is_error


class TestCalls:
    def test_arguments_have_the_annotated_types(self):
        arguments = '{"place": {"name": "Kyoto"}, "day": "2026-11-22", "unit": "kelvin"}'

        result = call(forecast, arguments, owner="ann", request=None, memory_id="c")

        assert result.text == "Kyoto (jp) on 22.11. in kelvin, low, for ann"
        assert result.is_error is None

    def test_the_model_cannot_set_what_the_assistant_injects(self):
        arguments = '{"place": {"name": "Kyoto"}, "day": "2026-11-22", "owner": "bob"}'

        result = call(forecast, arguments, owner="ann")

        assert (result.is_error, result.text) == (
            True,
            "The arguments are invalid: owner: Extra inputs are not permitted",
        )

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ("{}", "place: Field required; day: Field required"),
            ('{"place": {}, "day": "soon"}', "place.name: Field required; day: Input should be a valid date"),
            ("not json", "JSON: Invalid JSON"),
            ("[1]", "JSON: Input should be an object"),
            ('{"place"', "JSON: Invalid JSON"),
        ],
    )
    def test_invalid_arguments_are_explained(self, arguments, text):
        result = call(forecast, arguments)

        assert result.is_error
        assert text in result.text
        assert "soon" not in result.text

    @pytest.mark.parametrize("amount", ["NaN", '"NaN"', "Infinity", "-Infinity", '"inf"', "1e999"])
    def test_numbers_are_finite_so_that_no_comparison_lets_a_call_through(self, amount):
        refunded = []

        def refund(amount: float) -> str:
            refunded.append(amount)
            return "Done."

        tool = Tool(refund, description="Pay back.", needs_approval=lambda amount: amount > 50)
        request = ToolExecutionRequest("1", "refund", f'{{"amount": {amount}}}')

        assert tool.wait(request, {}) is None
        assert call(refund, request.arguments).is_error
        assert refunded == []

    @pytest.mark.parametrize(
        ("asks", "words"),
        [
            ("pay {amount:.2f} € to {payee}", "pay 5.00 € to Ann {amount}"),
            (lazystr("bezahle {payee}"), "bezahle Ann {amount}"),
            ("pay\nall  of\tit", "pay all of it"),
            ("pay {note}", "pay " + "x" * 99 + "…"),
            ("{note} " * 4, "x" * 99 + "… " + "x" * 99 + "… " + "x" * 97 + "…"),
            (lazystr("pay {unknown}"), ""),
            ("pay {amount.real}", "pay 5.0"),
        ],
    )
    def test_what_a_call_asks_for_is_in_words_of_the_tool_and_bounded(self, asks, words):
        def pay(amount: float, payee: str, note: str = "x" * 500, owner: object = None) -> str:
            """Pay."""

        tool = Tool(pay, needs_approval=True, asks=asks)
        request = ToolExecutionRequest("1", "pay", '{"amount": 5, "payee": "Ann {amount}"}')

        assert tool.wait(request, {"owner": "bob"}) == ("owner", words)

    @pytest.mark.parametrize("asks", ["pay {sum}", "for {owner}", "{}", "pay {", "{0}"])
    def test_words_that_cannot_be_formatted_with_the_arguments_are_refused(self, asks):
        def pay(amount: float, owner: object) -> str:
            """Pay."""

        with pytest.raises(ValueError, match="asks"):
            Tool(pay, needs_approval=True, asks=asks)

    @pytest.mark.parametrize("arguments", [None, "", "{}"])
    def test_missing_arguments_are_allowed(self, arguments):
        assert call(lambda: "noon", arguments).text == "noon"

    @pytest.mark.parametrize(
        ("returned", "text"),
        [
            ("noon", "noon"),
            ("", ""),
            (None, "null"),
            (3, "3"),
            ({"a": [1, date(2026, 11, 22)]}, '{"a":[1,"2026-11-22"]}'),
            (Place(name="Kyoto"), '{"name":"Kyoto","country":"jp"}'),
            ([], "[]"),
        ],
        ids=repr,
    )
    def test_return_values_become_text(self, returned, text):
        assert call(lambda: returned).text == text

    @pytest.mark.parametrize("as_list", [True, False])
    def test_images_are_returned_unchanged(self, as_list):
        picture = ImageContent(Image(url="https://example.org/cat.png"))
        contents = [TextContent("A cat:"), picture]

        result = call(lambda: contents if as_list else picture)

        assert list(result.contents) == (contents if as_list else [picture])

    @pytest.mark.parametrize(
        "error", [ToolError("no such city"), ValueError("no such city"), ObjectDoesNotExist("no such city")], ids=repr
    )
    def test_the_model_reads_messages_of_tool_errors(self, error):
        def fail() -> str:
            raise error

        result = call(fail)

        assert (result.is_error, result.text) == (True, "no such city")

    @pytest.mark.parametrize(
        "error",
        [
            OperationalError("connection to db.internal failed for user secret"),
            ConnectionRefusedError("https://api.example.org/?key=secret"),
            AttributeError("secret"),
            UnicodeDecodeError("utf-8", b"secret", 0, 1, "invalid"),
            ValueError(""),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_the_model_does_not_read_other_exceptions(self, error, caplog):
        def fail() -> str:
            raise error

        result = call(fail)

        if not isinstance(error, UnicodeDecodeError):
            assert result.text == f"The tool failed: {type(error).__name__}."
        assert result.is_error
        assert "secret" not in result.text

    def test_other_exceptions_are_logged(self, caplog):
        def fail() -> str:
            raise AttributeError

        call(fail)

        assert "The tool 'fail' failed." in caplog.text

    @pytest.mark.parametrize(
        "returned", ["a\0b", "\ud800", object(), "x" * 5_000_000], ids=["NUL", "half", "object", "long"]
    )
    def test_a_result_that_cannot_be_stored_is_an_error_that_the_model_reads(self, returned):
        result = call(lambda: returned)

        assert result.is_error
        assert len(result.text) < 1_000

    @pytest.mark.parametrize(
        "error",
        [
            StopIteration("secret"),
            StopAsyncIteration("secret"),
            GeneratorExit("secret"),
            SystemExit("secret"),
            asyncio.CancelledError("secret"),
            concurrent.futures.CancelledError("secret"),
        ],
        ids=lambda error: f"{type(error).__module__}.{type(error).__name__}",
    )
    def test_an_exception_that_would_end_more_than_the_call_is_named_and_logged(self, error, caplog):
        def fail() -> str:
            raise error

        assert call(fail).text == f"The tool failed: {type(error).__name__}."
        assert caplog.text.count("The tool 'fail' failed.") == 3

    @pytest.mark.parametrize("error", [asyncio.CancelledError, GeneratorExit, SystemExit, StopAsyncIteration])
    def test_an_async_tool_cannot_end_more_than_its_call_either(self, error, caplog):
        async def fail() -> str:
            await asyncio.sleep(0)
            raise error

        assert call(fail).text == f"The tool failed: {error.__name__}."
        assert caplog.text.count("The tool 'fail' failed.") == 3

    def test_a_cancelled_call_of_an_async_tool_is_cancelled(self):
        async def wait() -> str:
            """Do it."""
            await asyncio.sleep(PATIENCE)
            return "done"

        async def cancelled() -> None:
            calling = asyncio.create_task(Tool(wait).acall(ToolExecutionRequest("1", "wait", "{}"), {}))
            await asyncio.sleep(0)
            calling.cancel()
            await calling

        with pytest.raises(asyncio.CancelledError):
            asyncio.run(cancelled())

    def test_whatever_is_awaitable_is_awaited(self):
        async def look(place: str) -> str:
            """Look at a place."""
            await asyncio.sleep(0)
            return f"a tree in {place}"

        @functools.wraps(look)
        def looking(*args, **kwargs):
            return look(*args, **kwargs)

        def passing(place: str):
            return look(place)

        for function in (looking, functools.partial(look), passing):
            assert call(function, '{"place": "Kyoto"}').text == "a tree in Kyoto"

    def test_an_adapter_of_asgiref_is_supported(self):
        def look(place: str) -> str:
            return f"a tree in {place}"

        assert call(sync_to_async(look), '{"place": "Kyoto"}').text == "a tree in Kyoto"

    @pytest.mark.parametrize(
        ("returned", "text"), [(lazystr("noon"), "noon"), ({"time": lazystr("noon")}, '{"time":"noon"}')]
    )
    def test_lazy_translations_are_texts(self, returned, text):
        assert call(lambda: returned).text == text

    def test_an_exception_without_a_text_is_named(self):
        class BrokenError(ValueError):
            def __str__(self):
                return self.args[7]

        def fail() -> str:
            raise BrokenError

        assert call(fail).text == "The tool failed: BrokenError."

    def test_an_error_that_cannot_be_stored_is_named(self):
        def fail() -> str:
            raise ValueError("a\0b")

        assert call(fail).text == "The tool failed: ValueError."

    @given(st.text())
    def test_every_call_has_a_result(self, arguments):
        def echo(word: str = "") -> str:
            """Do it."""
            return word

        tool = Tool(echo)

        assert isinstance(tool.call(ToolExecutionRequest("1", "echo", arguments), {}).text, str)


class TestWhatIsMissing:
    """A tool that a model could not use fails when it is made."""

    def test_a_parameter_without_an_annotation_is_named(self):
        def find(number, city: str, owner):
            """Find a parcel."""

        with pytest.raises(TypeError, match=r"The tool 'find' has parameters without annotations: number\. The model"):
            Tool(find)

    @pytest.mark.parametrize("description", [None, ""], ids=repr)
    def test_a_tool_without_a_docstring_needs_a_description(self, description):
        def find(number: int):
            pass

        with pytest.raises(TypeError, match=r"The tool 'find' has no docstring from which a model could learn"):
            Tool(find, description=description)
        assert Tool(find, description="Find a parcel.").specification.description == "Find a parcel."
