"""
The chat templates of open models, as vLLM, SGLang and llama.cpp render them for each request.

They are those in the wheel of trl, a package on PyPI, of which nothing else is needed: ``pip install --no-deps trl``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Template
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment


class RefusedError(ValueError):
    """A template cannot be rendered for a request."""


def has_templates() -> bool:
    return find_spec("trl") is not None


def render(name: str, body: Mapping[str, Any], *, takes_files: bool) -> str:
    """
    Return the prompt for *body*, a request to chat completions; raise ``RefusedError`` if the template refuses it.

    Arguments are parsed as JSON, as all templates but the oldest want them. A template of a model that knows texts
    alone gets one text for each message.
    """
    messages = deepcopy(list(body["messages"]))
    for message in messages:
        message.setdefault("content", None)
        if isinstance(message["content"], list) and not takes_files:
            message["content"] = "\n".join(part["text"] for part in message["content"])
    try:
        return _rendered(name, _with_objects(messages), body)
    except TypeError:  # it puts arguments into a text
        try:
            return _rendered(name, messages, body)
        except TypeError as exc:
            raise RefusedError(str(exc)) from exc


def _with_objects(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    messages = deepcopy(messages)
    for message in messages:
        for call in message.get("tool_calls") or ():
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return messages


def _rendered(name: str, messages: list[dict[str, Any]], body: Mapping[str, Any]) -> str:
    try:
        return _template(name).render(messages=messages, tools=body.get("tools") or None, add_generation_prompt=True)
    except TemplateError as exc:
        raise RefusedError(str(exc)) from exc


@cache
def _template(name: str) -> Template:
    spec = find_spec("trl")
    assert spec is not None
    assert spec.origin is not None
    extensions: list[str | type[Extension]] = ["jinja2.ext.loopcontrols"]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.globals |= {
        "raise_exception": _refuse,
        "strftime_now": lambda form: "26 Nov 2026",
        "bos_token": "<s>",
        "eos_token": "</s>",
    }
    environment.filters["tojson"] = _to_json
    source = Path(spec.origin).with_name("chat_templates") / f"{name}.jinja"
    return environment.from_string(source.read_text(encoding="utf-8"))


def _refuse(reason: str) -> NoReturn:
    raise TemplateError(reason)


def _to_json(value: object, **options: Any) -> str:
    return json.dumps(value, **{"ensure_ascii": False, **options})
