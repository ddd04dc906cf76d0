"""A process that imported the package exits cleanly: nothing keeps running, nothing crashes."""

import os
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
import pytest
from msgspec.structs import fields

from tests.quick import mostly_slow

PURE = ("codec", "core.tool_calls", "core.windows", "formats.openai_chat", "memory", "stores", "tokens")

# Exit handlers of the standard library and msgspec are not ours, so import these first.
REGISTERS = f"""
import atexit, asyncio, concurrent.futures.thread, logging, tempfile, msgspec
registered = []
atexit.register = registered.append
import {", ".join(f"chatmemory_django.{name}" for name in PURE)}
assert not registered, registered
"""

EVERYTHING = """
import importlib, pkgutil
import chatmemory_django
for module in pkgutil.walk_packages(chatmemory_django.__path__, "chatmemory_django."):
    others = ("chatmemory_django.contrib.adapters", "chatmemory_django.contrib.telemetry")  # they import frameworks
    if not module.name.startswith((*others, "chatmemory_django.migrations")):
        importlib.import_module(module.name)
"""

USES = f"""
import django
django.setup()
{EVERYTHING}
from chatmemory_django.codec import messages_from_json, messages_to_json
from chatmemory_django.formats.openai_chat import from_openai, to_openai
items = [{{"role": "system", "content": "Be brief."}}, {{"role": "user", "content": "Hi"}}]
messages = from_openai(items)
assert messages_from_json(messages_to_json(messages)) == messages
assert to_openai(messages) == items
"""


def run(script: str, **environment: str) -> tuple[int, str]:
    """Run *script* in a new process and return its exit status and output."""
    ended = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "example_project.settings", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=300,
        check=False,
    )
    return ended.returncode, ended.stdout


def test_importing_registers_no_exit_handlers():
    assert run(REGISTERS) == (0, "")


@pytest.mark.parametrize("seed", mostly_slow(range(3)))
def test_a_process_that_used_the_package_exits_without_a_crash(seed):
    for required in ("mcp", "pydantic_ai", "redis"):
        pytest.importorskip(required)
    # Overwrite freed memory, so that using or freeing it again crashes every time, not only sometimes.
    assert run(USES, PYTHONMALLOC="debug", PYTHONHASHSEED=str(seed)) == (0, "")


def test_no_field_accepts_both_a_text_with_a_pattern_and_a_list():
    """For such a union, msgspec (0.22 and earlier) frees the pattern as if it were the type of the list's items."""
    exec(EVERYTHING, {})

    structs = [each for each in structs_of(msgspec.Struct) if each.__module__.startswith("chatmemory_django.")]
    wrong = [
        f"{struct.__name__}.{field.name}"
        for struct in structs
        for field in fields(struct)
        if is_freed_wrongly(field.type)
    ]

    assert len(structs) > 20
    assert wrong == []


def structs_of(base: type) -> Iterator[type]:
    for struct in base.__subclasses__():
        yield struct
        yield from structs_of(struct)


def is_freed_wrongly(hint: Any) -> bool:
    members = list(members_of(hint))
    has_pattern = any(isinstance(each, msgspec.Meta) and each.pattern for _, metas in members for each in metas)
    takes_items = any(get_origin(each) not in {None, Literal, tuple} or ... in get_args(each) for each, _ in members)
    return has_pattern and takes_items


def members_of(hint: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Yield the types that *hint* allows, each with its annotations."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        for member, metas in members_of(arguments[0]):
            yield member, [*metas, *arguments[1:]]
    elif origin in {Union, types.UnionType}:
        for each in arguments:
            yield from members_of(each)
    else:
        yield hint, []
