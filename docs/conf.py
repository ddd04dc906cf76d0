"""Configuration of Sphinx: python -m sphinx -W --keep-going -b html docs OUT."""  # noqa: INP001

import ast
import re
import sys
from importlib import import_module
from importlib.metadata import version as version_of
from pathlib import Path

import django
from django.conf import settings
from docutils.nodes import Element, Text
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.ext.autodoc.mock import _MockObject, mock
from sphinx.util import inspect
from sphinx.util.typing import stringify_annotation

sys.path.insert(0, str(Path(__file__).parent.parent))
settings.configure(
    INSTALLED_APPS=[
        "django.contrib.admin",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.messages",
        "rest_framework",
        *(f"chatmemory_django{app}" for app in ("", ".chat", ".contrib.adapters.records", ".contrib.notes")),
    ],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3"}},
)

# The frameworks and services of optional features. The documentation is built without them.
autodoc_mock_imports = [
    *("agents", "cryptography", "langchain_core", "llama_index", "mcp", "mcp_types", "openai", "opentelemetry"),
    *("pydantic_ai", "redis"),
]
with mock(autodoc_mock_imports):
    django.setup()  # the reference imports models

# Types with a name of their own in the source. When annotations are evaluated, the name is lost.
_ALIASES = {
    stringify_annotation(getattr(import_module(f"chatmemory_django.{module}"), name), "smart"): name
    for module, name in (
        ("messages", "ChatMessage"),
        ("chat.model", "ChatEvent"),
        ("chat.answers.exchange", "AssistantEvent"),
        ("chat.answers.context", "ContextFunction"),
        ("chat.answers.titles", "TitleFunction"),
        ("chat.guards", "GuardFunction"),
        ("chat.tools", "Tools"),
    )
}

project = "chatmemory_django"
author = "The authors of chatmemory_django"
release = version = version_of("chatmemory_django")
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]

myst_heading_anchors = 4

html_theme = "furo"
html_title = "Chat memory for Django"
html_static_path = ["_static"]
html_css_files = ["docs.css"]
html_copy_source = False
html_show_sourcelink = False

# The reference: members in the order of the source, and types that can be read.
autodoc_default_options = {"members": True, "exclude-members": "DoesNotExist, MultipleObjectsReturned"}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_use_type_comments = False
python_maximum_signature_line_length = 80
python_use_unqualified_type_names = True
add_module_names = False
napoleon_numpy_docstring = False

_OUTSIDE = re.compile(
    r"(?<!!)\[([^\]]+)\]\((?:\.\./)+((?:benchmarks|tests|example_project)/[^)#]+|[A-Z]+\.md)(?:#[^)]*)?\)"
)
_LITERAL = re.compile(r"(``[^`]+``)(\w?)")


def name_files_outside(app: Sphinx, docname: str, source: list[str]) -> None:
    """Name files of the repository that are not pages, instead of linking to them."""
    source[0] = _OUTSIDE.sub(r"\1 (`\2` in the repository)", source[0])


def separate_literals(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Have a plural such as ``Message``s read as a literal and a letter, which reStructuredText requires a mark for."""
    text = _LITERAL.sub(lambda found: f"{found[1]}\\ {found[2]}" if found[2] else found[1], "\n".join(lines))
    lines[:] = text.split("\n")


def write_signature(
    app: Sphinx, what: str, name: str, obj: object, options: object, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Return a signature as a person would write it, which Sphinx can parse and so link to its types."""
    if signature is None:
        return None, returned
    if what == "class" and getattr(obj, "__new__", None) is _MockObject.__new__:  # its base is not installed
        own = inspect.signature(obj.__init__, bound_method=True)
        signature = inspect.stringify_signature(own, unqualified_typehints=True)
    written = _readable(signature)
    tree = ast.parse(f"def function{written}: ...")
    [parameters] = (each for each in ast.walk(tree) if isinstance(each, ast.arguments))
    ordered = [*parameters.posonlyargs, *parameters.args]
    defaults = [None] * (len(ordered) - len(parameters.defaults)) + parameters.defaults
    kept = [(each, default) for each, default in zip(ordered, defaults, strict=True) if each.arg[0] != "_"]
    parameters.args = [each for each, _ in kept][len(parameters.posonlyargs) :]
    parameters.defaults = [default for _, default in kept if default is not None]
    return f"({ast.unparse(parameters)})", returned and _readable(returned)


def _readable(text: str) -> str:
    """Return *text* with the names of aliases, functions and variables of types, and no value that is not code."""
    text = re.sub(r"<function (\w+)>|<class '(?:\w+\.)*(\w+)'>", lambda found: found[1] or found[2], text)
    text = re.sub(r"<[^<>]*>", "...", text)
    text = re.sub(r"\b([A-Z]\w+)\((?:\w+=None(?:, )?)+\)", r"\1()", text)
    for alias in sorted(_ALIASES, key=len, reverse=True):
        text = text.replace(alias, _ALIASES[alias])
    text = re.sub(r"\*\*(\w+): ~typing\.~_P", r"**\1: P.kwargs", text)
    text = re.sub(r"\*(\w+): ~typing\.~_P", r"*\1: P.args", text)
    return re.sub(r"~?(?:\w+\.)*~?\b_([A-Z]\w*)", r"\1", text)


def finish_signature(app: Sphinx, domain: str, kind: str, content: Element) -> None:
    """Leave out a value that is no code, such as that of a signal, and rename what overloads name in private."""
    for value in list(content.parent.findall(addnodes.desc_annotation)):
        if value.astext().startswith(" = ") and "<" in value.astext():
            value.parent.remove(value)
    for signature in content.parent.findall(addnodes.desc_signature):
        for text in list(signature.findall(Text)):
            if re.fullmatch(r"_[A-Z]\w*", text):
                text.parent.replace(text, Text(text[1:]))


def setup(app: Sphinx) -> None:
    """Connect what changes sources before they are parsed, and signatures before they are written."""
    app.connect("source-read", name_files_outside)
    app.connect("autodoc-process-docstring", separate_literals)
    app.connect("autodoc-process-signature", write_signature)
    app.connect("object-description-transform", finish_signature)
