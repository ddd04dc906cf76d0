"""
The table of what vendors accept: each row is a rule, each column a vendor.

Written from ``specs/vendors.md`` alone. Nothing of the package is imported here, so that the judge does not share the
mistakes of what it judges. Where the public disagrees, the stricter rule holds.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, NoReturn, TypeAlias

from tests.acceptance.vendors.turns import (
    Asked,
    CachePoint,
    Call,
    File,
    Part,
    Result,
    Text,
    Thinking,
    Turn,
    Unknown,
)

SYSTEM = "[system]"
"""What each system prompt of the gate contains, and no other text: where it stands is where the prompt was put."""

DUMMY_SIGNATURES = (b"context_engineering_is_the_way_to_go", b"skip_thought_signature_validator")
"""What Google's documentation offers for calls that another model made."""

Check: TypeAlias = Callable[[Asked], Iterator[str]]
"""A rule: what is wrong with a request, for people."""


class Violation(NamedTuple):
    rule: str
    detail: str


@dataclass(frozen=True)
class Vendor:
    """A column of the table: the vendor's *api*, its *rules* by the names of their rows, and the *files* it takes."""

    api: str
    rules: dict[str, Check]
    files: frozenset[str] = frozenset()
    template: str | None = None
    """The chat template of an open model: it is rendered for each request, and may refuse it."""


def violations(vendor: Vendor, asked: Asked) -> list[Violation]:
    """Return what *vendor* would refuse *asked* for."""
    return [Violation(name, detail) for name, check in vendor.rules.items() for detail in check(asked)]


def signed(vendor: str, text: str) -> str:
    """
    Return the signature of a thought: only its vendor makes it, and only of this text.

    Claude's are good on each platform, by its documentation.
    """
    vendor = "claude" if vendor in {"anthropic", "bedrock-claude"} else vendor
    if vendor == "gemini":
        return base64.b64encode(f"gemini has thought {text}".encode()).decode()
    return hashlib.sha256(f"{vendor} has thought {text}".encode()).hexdigest()


# System messages.


def system_first(asked: Asked) -> Iterator[str]:
    roles = [turn.role for turn in asked.turns]
    for before, role in pairwise(roles):
        if role == "system" and before != "system":
            yield f"Unexpected role 'system' after role '{before}'"


def one_system(asked: Asked) -> Iterator[str]:
    yield from system_first(asked)
    if sum(turn.role == "system" for turn in asked.turns) > 1:
        yield "more than one system message"


def system_apart(asked: Asked) -> Iterator[str]:
    """The prompt has a field of its own: among the turns it is a text of some user."""
    for index, turn in enumerate(asked.turns):
        if turn.role not in {"user", "assistant"}:
            yield f"turn {index} has the role {turn.role!r}"
        if any(SYSTEM in text for text in turn.texts):
            yield f"turn {index}, of the {turn.role}, has the text of a system message"


# Turns.


def known_parts(asked: Asked) -> Iterator[str]:
    for index, turn in enumerate(asked.turns):
        if turn.role not in {"system", "user", "assistant", "tool"}:
            yield f"turn {index} has the role {turn.role!r}"
        yield from (f"turn {index} has {part.what!r}" for part in _within(turn) if isinstance(part, Unknown))


def first_is_user(asked: Asked) -> Iterator[str]:
    first = next((turn.role for turn in asked.turns if turn.role != "system"), None)
    if first != "user":
        yield f"the first turn is the {first}'s"


def last_is_not_the_assistants(asked: Asked) -> Iterator[str]:
    last = asked.turns[-1].role if asked.turns else None
    if last not in {"user", "tool"}:
        yield f"the last turn is the {last}'s"


def roles_alternate(asked: Asked) -> Iterator[str]:
    roles = [turn.role for turn in asked.turns if turn.role != "system"]
    for index, (before, role) in enumerate(pairwise(roles), 1):
        if before == role:
            yield f"turns {index - 1} and {index} are both the {role}'s"


def user_and_assistant_in_turn(asked: Asked) -> Iterator[str]:
    """Gemma 3's and Cohere's templates know no other roles, so not even the results of tools."""
    roles = [turn.role for turn in asked.turns if turn.role != "system"]
    for index, role in enumerate(roles):
        if role != ("assistant" if index % 2 else "user"):
            yield f"turn {index} is the {role}'s: roles must alternate user/assistant/user/assistant/..."


def no_user_after_tool(asked: Asked) -> Iterator[str]:
    for index, (before, turn) in enumerate(pairwise(asked.turns), 1):
        if (before.role, turn.role) == ("tool", "user"):
            yield f"turn {index} is the user's, directly behind a tool's"


# Texts.


def no_empty_text(asked: Asked) -> Iterator[str]:
    for index, turn in enumerate(asked.turns):
        if not turn.parts:
            yield f"turn {index} has no content"
        if any(isinstance(part, Text) and not part.text for part in turn.parts):
            yield f"turn {index} has an empty text"


def no_blank_text(asked: Asked) -> Iterator[str]:
    yield from no_empty_text(asked)
    for index, turn in enumerate(asked.turns):
        if any(text and not text.strip() for text in turn.texts):
            yield f"turn {index} has a text of white space only"


def no_blank_text_anywhere(asked: Asked) -> Iterator[str]:
    yield from no_blank_text(asked)
    if any(not text.strip() for text in asked.system):
        yield "a system text is blank"
    for index, turn in enumerate(asked.turns):
        for result in turn.results:
            if not result.parts or any(isinstance(part, Text) and not part.text.strip() for part in result.parts):
                yield f"turn {index} has a blank result"


def content_or_calls(asked: Asked) -> Iterator[str]:
    for index, turn in enumerate(asked.turns):
        if turn.role == "assistant" and not turn.calls and not any(turn.texts):
            yield f"turn {index}, of the assistant, has neither content nor calls"


# Ids and names.


def ids_match(pattern: str) -> Check:
    def check(asked: Asked) -> Iterator[str]:
        for index, turn in enumerate(asked.turns):
            parts: list[Call | Result] = [*turn.calls, *turn.results]
            for part in parts:
                if not re.fullmatch(pattern, part.id or ""):
                    yield f"turn {index} has the id {part.id!r}; it must match {pattern}"

    return check


def ids_are_unique(asked: Asked) -> Iterator[str]:
    ids = [call.id for turn in asked.turns for call in turn.calls]
    yield from (f"the id {each!r} is not unique" for each in sorted({str(each) for each in ids if ids.count(each) > 1}))


def names_match(pattern: str) -> Check:
    def check(asked: Asked) -> Iterator[str]:
        for name in {*asked.tools, *(call.name for turn in asked.turns for call in turn.calls)}:
            if not re.fullmatch(pattern, name):
                yield f"a tool is named {name!r}; it must match {pattern}"

    return check


def speakers_match(asked: Asked) -> Iterator[str]:
    for index, turn in enumerate(asked.turns):
        if turn.name is not None and not re.fullmatch(r"[^\s<|\\/>]{1,64}", turn.name):
            yield f"turn {index} has the name {turn.name!r}"


# Arguments and results.


def arguments_are_json(asked: Asked) -> Iterator[str]:
    for index, turn in enumerate(asked.turns):
        for call in turn.calls:
            try:
                if isinstance(call.arguments, str):
                    json.loads(call.arguments, parse_constant=_no_constant)
            except ValueError:
                yield f"turn {index} has arguments that are not JSON"


def arguments_are_an_object(asked: Asked) -> Iterator[str]:
    for index, turn in enumerate(asked.turns):
        for call in turn.calls:
            try:
                value = call.arguments
                value = json.loads(value, parse_constant=_no_constant) if isinstance(value, str) else value
            except ValueError:
                value = None
            if not isinstance(value, dict):
                yield f"turn {index} has arguments that are no JSON object"


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def results_follow_calls(asked: Asked) -> Iterator[str]:
    """Where results are turns of their own: directly behind the calls, one for each id."""
    waiting: list[str | None] = []
    for index, turn in enumerate([*asked.turns, Turn("end", ())]):
        if turn.role == "tool":
            for result in turn.results:
                if result.id in waiting:
                    waiting.remove(result.id)
                else:
                    yield f"turn {index} is a result of {result.id!r}, which the turn before it did not call"
            continue
        if waiting:
            yield f"turn {index} stands where results of {waiting} must be"
        waiting = [call.id for call in turn.calls]
        if len(set(waiting)) < len(waiting):
            yield f"turn {index} has an id twice, so no result shows which call it is of"


def a_result_for_each_call(asked: Asked) -> Iterator[str]:
    """In the Responses API: anywhere behind the call, but one."""
    called: list[str | None] = []
    answered: list[str | None] = []
    for index, turn in enumerate(asked.turns):
        called += [call.id for call in turn.calls]
        for result in turn.results:
            if result.id not in called or result.id in answered:
                yield f"item {index} is a result of {result.id!r}, which has none to give"
            answered.append(result.id)
    yield from (f"No tool output found for function call {each}" for each in called if each not in answered)


def results_begin_next_turn(asked: Asked) -> Iterator[str]:
    """Where results are parts of a user's turn: at its beginning, one for each id of the turn before."""
    for index, (before, turn) in enumerate(pairwise([Turn("", ()), *merged(asked.turns), Turn("end", ())])):
        calls, results = [call.id for call in before.calls], [result.id for result in turn.results]
        if sorted(map(str, calls)) != sorted(map(str, results)):
            yield f"turn {index} has the results of {results}, the one before it the calls {calls}"
        if any(not isinstance(part, Result) for part in turn.parts[: len(results)]):
            yield f"turn {index} has something in front of its results"


def as_many_results_as_calls(asked: Asked) -> Iterator[str]:
    """Gemini's: directly behind the turn with the calls, which comes behind a user's turn or one with results."""
    for index, (before, turn) in enumerate(pairwise([Turn("", ()), *asked.turns, Turn("end", ())])):
        if len(before.calls) != len(turn.results):
            yield f"turn {index} has {len(turn.results)} results of {len(before.calls)} calls"
        if turn.calls and before.role != "user":
            yield f"turn {index} has calls behind a turn of {before.role or 'nobody'!r}"


# Tools.


def tools_of_history(asked: Asked) -> Iterator[str]:
    if not asked.tools and any(turn.calls or turn.results for turn in asked.turns):
        yield "toolConfig must be defined: the history has calls"


def no_choice_without_tools(asked: Asked) -> Iterator[str]:
    if asked.choice is not None and not asked.tools:
        yield f"tool_choice is {asked.choice!r}, but there are no tools"


# Thinking.


def thinking_is_signed(vendor: str) -> Check:
    """A thought comes back as it was, and only to who thought it; in a loop of tools, it begins the last answer."""

    def check(asked: Asked) -> Iterator[str]:
        turns = merged(asked.turns)
        for index, turn in enumerate(turns):
            for part in turn.parts:
                if isinstance(part, Thinking) and part.signature != signed(vendor, part.text):
                    yield f"turn {index} has a thought with an invalid signature"
        last = [turn for turn in turns if turn.role == "assistant"][-1:]
        if asked.thinks and last and turns[-1].results and not isinstance(last[0].parts[0], Thinking):
            yield "the last answer of a loop of tools must begin with its thinking"

    return check


def thinking_is_not_the_end(asked: Asked) -> Iterator[str]:
    """Not in the table, but reported: "The final block in an assistant message cannot be `thinking`"."""
    for index, turn in enumerate(merged(asked.turns)):
        if turn.parts and isinstance(turn.parts[-1], Thinking):
            yield f"turn {index} ends with a thought"


def reasoning_is_followed(asked: Asked) -> Iterator[str]:
    """A reasoning item has its message or call behind it, is there once, and is complete where nothing is stored."""
    seen: list[str | None] = []
    for index, (turn, behind) in enumerate(pairwise([*asked.turns, Turn("end", ())])):
        for part in turn.parts:
            if not isinstance(part, Thinking):
                continue
            if behind.role != "assistant" or isinstance(behind.parts[0], Thinking):
                yield f"item {index} is a reasoning without its following item"
            if part.id in seen:
                yield f"item {index} is the reasoning {part.id!r} once more"
            if not asked.stores and not part.signature:
                yield f"item {index} is a reasoning without encrypted_content, and nothing is stored"
            if part.signature and part.signature != signed("responses", str(part.id)):
                yield f"item {index} is a reasoning that cannot be decrypted"
            seen.append(part.id)


def calls_are_signed(asked: Asked) -> Iterator[str]:
    """Gemini 3: the first call of each answer in the present turn has a signature; none may be invented."""
    users = [index for index, turn in enumerate(asked.turns) if turn.role == "user" and not turn.results]
    begin = users[-1] if users else -1
    for index, turn in enumerate(asked.turns):
        signatures = [call.signature for call in turn.calls]
        if index > begin and signatures and not signatures[0]:
            yield f"turn {index} has a call without thoughtSignature"
        for part in turn.parts:
            if isinstance(part, Call | Thinking) and part.signature and not _is_googles(part.signature):
                yield f"turn {index} has a signature that is not Gemini's"


def _is_googles(signature: str) -> bool:
    with suppress(ValueError):
        signed_by = base64.b64decode(signature.translate(str.maketrans("-_", "+/")), validate=True)
        return signed_by.startswith(b"gemini") or signed_by in DUMMY_SIGNATURES
    return False


def reasoning_content_is_sent(asked: Asked) -> Iterator[str]:
    for index, turn in enumerate(asked.turns):
        if turn.calls and not any(isinstance(part, Thinking) and part.text for part in turn.parts):
            yield f"reasoning_content is missing in the assistant's tool call message at index {index}"


# Files and prompt caches.


def takes(files: frozenset[str], *, images: int | None = None) -> Check:
    def check(asked: Asked) -> Iterator[str]:
        kinds = [part.kind for turn in asked.turns for part in _within(turn) if isinstance(part, File)]
        for kind in sorted({*kinds} - files):
            yield f"Unsupported content part: {kind}"
        if images is not None and kinds.count("image") > images:
            yield f"{kinds.count('image')} images; there may be {images}"

    return check


def documents_have_a_text(asked: Asked) -> Iterator[str]:
    for index, turn in enumerate(asked.turns):
        if File("pdf") in turn.parts and not turn.texts:
            yield f"turn {index} has a document without a text beside it"
        for before, part in pairwise([*turn.parts, None]):
            if before == File("pdf") and isinstance(part, CachePoint):
                yield f"turn {index} has a cachePoint directly behind a document"


def four_breakpoints(asked: Asked) -> Iterator[str]:
    if asked.breakpoints > 4:
        yield f"{asked.breakpoints} breakpoints; there may be 4"


def _within(turn: Turn) -> Iterator[Part]:
    for part in turn.parts:
        yield part
        yield from part.parts if isinstance(part, Result) else ()


def merged(turns: Sequence[Turn]) -> list[Turn]:
    """Return *turns* as Anthropic reads them: those of the same role are combined."""
    read: list[Turn] = []
    for turn in turns:
        if read and read[-1].role == turn.role:
            read[-1] = Turn(turn.role, (*read[-1].parts, *turn.parts))
        else:
            read.append(turn)
    return read


WORD = "[A-Za-z0-9_-]"
IMAGES = frozenset({"image"})
IMAGES_AND_PDF = frozenset({"image", "pdf"})

_OPENAI: dict[str, Check] = {
    "parts": known_parts,
    "names of tools": names_match(WORD + "{1,64}"),
    "tool_choice without tools": no_choice_without_tools,
}
_CHAT: dict[str, Check] = {
    **_OPENAI,
    "names of speakers": speakers_match,
    "ids": ids_match(r"[\s\S]{1,40}"),
    "results": results_follow_calls,
}
_REASONING: dict[str, Check] = {
    **_OPENAI,
    "names of speakers": speakers_match,
    "results": results_follow_calls,
    "files": takes(frozenset()),
    "thinking": reasoning_content_is_sent,
}
_BEDROCK: dict[str, Check] = {
    "parts": known_parts,
    "system": system_apart,
    "last message": last_is_not_the_assistants,
    "roles": roles_alternate,
    "blank text": no_blank_text_anywhere,
    "ids": ids_match(WORD + "{1,64}"),
    "names of tools": names_match(WORD + "{1,64}"),
    "arguments": arguments_are_an_object,
    "results": results_begin_next_turn,
    "tools in the history": tools_of_history,
    "tool_choice without tools": no_choice_without_tools,
    "files": takes(IMAGES_AND_PDF),
    "documents": documents_have_a_text,
    "prompt cache": four_breakpoints,
}
_MISTRAL: dict[str, Check] = {
    "parts": known_parts,
    "system": system_first,
    "first message": first_is_user,
    "last message": last_is_not_the_assistants,
    "roles": no_user_after_tool,
    "blank text": content_or_calls,
    "ids": ids_match("[A-Za-z0-9]{9}"),
    "names of tools": names_match(WORD + "+"),
    "arguments": arguments_are_json,
    "results": results_follow_calls,
    "files": takes(IMAGES),
}


_TWO_ROLES: dict[str, Check] = {"parts": known_parts, "system": one_system, "roles": user_and_assistant_in_turn}


def _open(template: str, files: frozenset[str] = frozenset(), **rules: Check) -> Vendor:
    """Return an open model behind a server with OpenAI's API: its template has the other rules."""
    own = {"arguments": arguments_are_json, "results": results_follow_calls, "files": takes(files)}
    return Vendor("chat", {"parts": known_parts, **own, **rules}, files, template)


VENDORS = {
    "openai": Vendor("chat", {**_CHAT, "files": takes(IMAGES_AND_PDF | {"audio"})}, IMAGES_AND_PDF | {"audio"}),
    "responses": Vendor(
        "responses",
        {
            **_OPENAI,
            "ids": ids_match(r"[\s\S]{1,64}"),
            "results": a_result_for_each_call,
            "thinking": reasoning_is_followed,
            "files": takes(IMAGES_AND_PDF),
        },
        IMAGES_AND_PDF,
    ),
    "anthropic": Vendor(
        "anthropic",
        {
            "parts": known_parts,
            "system": system_apart,
            "last message": last_is_not_the_assistants,
            "blank text": no_blank_text,
            "ids": ids_match(WORD + "+"),
            "unique ids": ids_are_unique,
            "names of tools": names_match(WORD + "{1,128}"),
            "arguments": arguments_are_an_object,
            "results": results_begin_next_turn,
            "tool_choice without tools": no_choice_without_tools,
            "thinking": thinking_is_signed("anthropic"),
            "thinking at the end": thinking_is_not_the_end,
            "files": takes(IMAGES_AND_PDF, images=100),
            "prompt cache": four_breakpoints,
        },
        IMAGES_AND_PDF,
    ),
    "gemini": Vendor(
        "gemini",
        {
            "parts": known_parts,
            "system": system_apart,
            "first message": first_is_user,
            "last message": last_is_not_the_assistants,
            "blank text": no_empty_text,
            "names of tools": names_match(r"[A-Za-z0-9_.:-]{1,64}"),
            "arguments": arguments_are_an_object,
            "results": as_many_results_as_calls,
            "thinking": calls_are_signed,
        },
        IMAGES_AND_PDF | {"audio", "video"},
    ),
    "bedrock-claude": Vendor(
        "bedrock",
        {
            **_BEDROCK,
            "thinking": thinking_is_signed("bedrock-claude"),
            "thinking at the end": thinking_is_not_the_end,
        },
        IMAGES_AND_PDF,
    ),
    "bedrock-nova": Vendor("bedrock", {**_BEDROCK, "first message": first_is_user}, IMAGES_AND_PDF),
    "mistral": Vendor("chat", _MISTRAL, IMAGES),
    "deepseek": Vendor("chat", _REASONING),
    "moonshot": Vendor("chat", _REASONING),
    "qwen3": _open("qwen3", system=one_system),
    "qwen3.6": _open("qwen3_6", IMAGES, system=one_system),
    "qwen3.8": _open("qwen3_8", IMAGES, system=one_system),
    "gemma3": Vendor("chat", {**_TWO_ROLES, "files": takes(IMAGES)}, IMAGES, "gemma3"),
    "gemma4": _open("gemma4_v5", IMAGES),
    "llama3.1": _open("llama3_1"),
    "gpt-oss": _open("gptoss"),
    "glm4": _open("glm4moe"),
    "deepseek-v3": _open("deepseekv3"),
    "cohere": Vendor("chat", {**_TWO_ROLES, "files": takes(frozenset())}, template="cohere2"),
}
"""The columns of the table, and of the last one each open model whose template there is."""
