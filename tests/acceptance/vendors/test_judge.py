"""The judge can fail: each rule of each vendor refuses a request that breaks it, and nothing else."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.acceptance.vendors.bodies import body_of
from tests.acceptance.vendors.rules import SYSTEM, VENDORS, signed
from tests.acceptance.vendors.server import Vendors, judge, vendors
from tests.acceptance.vendors.templates import RefusedError, has_templates, render
from tests.acceptance.vendors.turns import Asked, Call, File, Part, Result, Text, Thinking, Turn, Unknown

PATHS = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "anthropic": "/v1/messages",
    "gemini": "/v1beta/models/gemini-3.8-flash:generateContent",
    "bedrock": "/model/claude/converse",
}

TEXT_ONLY = {name for name, vendor in VENDORS.items() if vendor.template in {"gemma3", "cohere2"}}
"""Their templates have no tools: roles alternate."""


def user(*parts: Part | str, name: str | None = None) -> Turn:
    return Turn("user", _parts(parts or ("Hello.",)), name)


def ai(*parts: Part | str) -> Turn:
    return Turn("assistant", _parts(parts))


def system(text: str = f"{SYSTEM} Be brief.") -> Turn:
    return Turn("system", (Text(text),))


def result(id_: str | None = "abcdefgh1", *parts: Part | str) -> Turn:
    return Turn("tool", (Result(id_, _parts(parts or ("noon",))),))


def _parts(parts: tuple[Part | str, ...]) -> tuple[Part, ...]:
    return tuple(Text(part) if isinstance(part, str) else part for part in parts)


def called(
    vendor: str, id_: str | None = "abcdefgh1", name: str = "look", arguments: str = '{"where": "here"}'
) -> Turn:
    """Return an answer with a call, and the thinking without which *vendor* does not take it back."""
    call = Call(id_, name, arguments, signed("gemini", "Hm.") if vendor == "gemini" else None)
    thinks = vendor in {"anthropic", "bedrock-claude", "deepseek", "moonshot"}
    speaks = vendor in VENDORS and VENDORS[vendor].template is not None  # some templates fail on null
    return ai(*[Thinking("Hm.", signed(vendor, "Hm."))] * thinks, *["I look."] * speaks, call)


def loop(vendor: str, **call: Any) -> Asked:
    """Return a request in the middle of a loop of tools."""
    return Asked((user(), called(vendor, **call), result(call.get("id_", "abcdefgh1"))), tools=("look",))


def breaking(rule: str, vendor: str) -> Asked:
    """Return a request that is good except for *rule*."""
    api, tools = VENDORS[vendor].api, ("look",)
    match rule, api:
        case "parts", _:
            return Asked((user(Unknown("hologram")),))
        case "system", "chat":
            return Asked((user(), ai("Hi."), system(), user()))
        case "system", _:
            return Asked((user(f"{SYSTEM} Be brief."),))
        case "first message", _:
            return Asked((ai("Hi."), user()))
        case "last message", _:
            return Asked((user(), ai("Hi.")))
        case "roles", "chat" if vendor in TEXT_ONLY:
            return Asked((user(), user()))
        case "roles", "chat":
            return replace(loop(vendor), turns=(*loop(vendor).turns, user()))
        case "roles", _:
            return Asked((user(), ai("Hi."), ai("Hi."), user()))
        case "blank text", "chat":
            return Asked((user(), ai(), user()))
        case "blank text", "gemini":
            return Asked((user(), ai(""), user()))
        case "blank text", _:
            return Asked((user(), ai("\n\n"), user()))
        case "ids", _:
            return loop(vendor, id_="an id " * 20)
        case "unique ids", _:
            again = (called(vendor), result())
            return Asked((user(), *again, *again), tools=tools)
        case "names of tools", _:
            return replace(loop(vendor, name="look it up"))
        case "names of speakers", _:
            return Asked((user(name="Ann Lee"),))
        case "arguments", "chat":
            return loop(vendor, arguments='{"where": "he')
        case "arguments", _:
            return loop(vendor, arguments="[1]")
        case "results", _:
            return Asked((user(), called(vendor), user()), tools=tools)
        case "tools in the history", _:
            return replace(loop(vendor), tools=())
        case "tool_choice without tools", _:
            return Asked((user(),), choice={"type": "auto"})
        case "thinking", "responses":
            return Asked((user(), ai(Thinking("Hm.", signed("responses", "rs_1"), "rs_1")), user()))
        case "thinking", "anthropic" | "bedrock":
            return Asked((user(), ai(CALL), result()), tools=tools, thinks=True)
        case "thinking", _:
            return Asked((user(), ai(CALL), result()), tools=tools)
        case "thinking at the end", _:
            return Asked((user(), ai(Thinking("Hm.", signed(vendor, "Hm."))), user()))
        case "files", _:
            kinds = {"image", "pdf", "audio", "video"} - VENDORS[vendor].files
            return Asked((user("Look!", File(max(kinds))),))
        case "documents", _:
            return Asked((user(File("pdf")),))
        case "prompt cache", _:
            return Asked((user(),), system=("Be brief.",) * 3, tools=("look", "count"), breakpoints=5)
    raise LookupError(rule)


CALL = Call("abcdefgh1", "look", "{}")
RULES = [(vendor, rule) for vendor, column in VENDORS.items() for rule in column.rules]


@pytest.fixture(scope="module")
def server() -> Iterator[Vendors]:
    with vendors() as server:
        yield server


def answered(server: Vendors, vendor: str, asked: Asked) -> tuple[int, str]:
    """Return the status and the text of the answer of *vendor* to *asked*."""
    api = VENDORS[vendor].api
    request = urllib.request.Request(
        server.url(vendor, PATHS[api]), json.dumps(body_of(api, asked)).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as exc:
        return exc.code, exc.read().decode()


@pytest.mark.parametrize(("vendor", "rule"), RULES)
def test_a_request_that_breaks_a_rule_is_refused_under_its_name(server: Vendors, vendor: str, rule: str):
    asked = breaking(rule, vendor)

    status, text = answered(server, vendor, asked)

    assert status == 400
    assert f'"{rule}: ' in text
    assert {each.rule for each in judge(vendor, body_of(VENDORS[vendor].api, asked))} == {rule}


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_plain_conversation_is_accepted(server: Vendors, vendor: str):
    status, text = answered(server, vendor, Asked((user(), ai("Hi."), user()), system=("Be brief.",)))

    assert (status, "Well." in text) == (200, True)


@pytest.mark.parametrize("vendor", sorted({*VENDORS} - TEXT_ONLY))
def test_a_conversation_with_tools_is_accepted(server: Vendors, vendor: str):
    turns = (
        user(),
        called(vendor),
        result(),
        ai("Noon."),
        user(),
        called(vendor, id_="abcdefgh2"),
        result("abcdefgh2"),
    )

    status, text = answered(server, vendor, Asked(turns, system=("Be brief.",), tools=("look",)))

    assert (status, "Well." in text) == (200, True)


class TestWhatARuleHasBesides:
    """Rules that can be broken in more than one way."""

    @pytest.mark.parametrize(
        ("vendor", "rule", "asked"),
        [
            ("anthropic", "files", Asked((user("Look!", *[File("image")] * 101),))),
            ("anthropic", "thinking", Asked((user(), ai(Thinking("Hm.", "forged"), "Hi."), user()))),
            ("anthropic", "blank text", Asked((user(""),))),
            ("anthropic", "blank text", Asked((user(), ai(), user()))),
            ("anthropic", "results", Asked((user(), result(), ai("Hi."), user()), tools=("look",))),
            ("anthropic", "results", replace(loop("anthropic"), turns=(*loop("anthropic").turns, result("abcdefgh2")))),
            ("bedrock-nova", "blank text", Asked((user(),), system=(" ",))),
            ("bedrock-nova", "blank text", Asked((user(), ai(CALL), result("abcdefgh1", "")), tools=("look",))),
            ("gemini", "results", Asked((user(), ai("Hi."), called("gemini"), result()), tools=("look",))),
            ("gemini", "thinking", Asked((user(), ai(Call("1", "look", "{}", "forged")), result()), tools=("look",))),
            ("openai", "results", Asked((user(), result()), tools=("look",))),
            ("openai", "results", Asked((user(), ai(CALL), user(), result()), tools=("look",))),
            (
                "openai",
                "results",
                Asked((user(), ai(CALL, CALL), result(), result()), tools=("look",)),
            ),
            ("responses", "results", Asked((user(), ai(CALL), result(), result()), tools=("look",))),
            ("responses", "thinking", Asked((user(), ai(Thinking("Hm.", None, "rs_1"), "Hi."), user()), stores=False)),
            ("responses", "thinking", Asked((user(), ai(Thinking("Hm.", "forged", "rs_1"), "Hi."), user()))),
            (
                "responses",
                "thinking",
                Asked((user(), *[ai(Thinking("Hm.", signed("responses", "rs_1"), "rs_1"), "Hi.")] * 2, user())),
            ),
            ("qwen3.6", "system", Asked((system(), system(), user()))),
        ],
    )
    def test_is_refused_too(self, vendor: str, rule: str, asked: Asked):
        assert {each.rule for each in judge(vendor, body_of(VENDORS[vendor].api, asked))} == {rule}

    def test_thinking_that_comes_back_as_it_was_is_accepted(self):
        thought = Thinking("Hm.", signed("responses", "rs_1"), "rs_1")
        asked = Asked((user(), ai(thought, "Hi."), user()), stores=False)

        assert judge("responses", body_of("responses", asked)) == []

    def test_in_a_loop_the_thinking_may_not_be_left_out(self):
        asked = replace(loop("anthropic"), thinks=True)

        assert judge("anthropic", body_of("anthropic", asked)) == []

    def test_a_body_that_is_none_of_the_vendors_is_refused(self):
        assert [each.rule for each in judge("anthropic", {"messages": [{"role": "user"}]})] == ["shape"]


@pytest.mark.skipif(not has_templates(), reason="needs the templates: pip install --no-deps trl")
class TestTemplates:
    @pytest.mark.parametrize(
        ("vendor", "reason", "turns"),
        [
            ("gemma3", "roles must alternate", (user(), user())),
            ("gemma3", "roles must alternate", (user(), ai("Hm.", CALL), result())),
            ("gemma3", "content type", loop("").turns),
            ("cohere", "roles must alternate", (ai("Hi."), user())),
            ("qwen3.6", "No user query", (ai("Hi."), ai("Hi."))),
            (
                "llama3.1",
                "single tool-calls",
                (user(), ai(CALL, Call("2", "look", "{}")), result(), result("2")),
            ),
            ("gpt-oss", "channel", (user(), ai("<|channel|>analysis<|message|>Hm."), user())),
            ("gpt-oss", "NoneType", (user(), ai(), user())),
            ("glm4", "items", loop("", arguments="[1]").turns),
            ("gemma4", "arguments must be", loop("", arguments='"here"').turns),
            ("deepseek-v3", "NoneType", (user(), ai(), user())),
        ],
    )
    def test_a_model_is_not_sent_what_it_was_not_made_for(self, vendor: str, reason: str, turns: tuple[Turn, ...]):
        template, body = VENDORS[vendor].template, body_of("chat", Asked(turns, tools=("look",)))

        with pytest.raises(RefusedError, match=reason):
            render(str(template), body, takes_files=True)
