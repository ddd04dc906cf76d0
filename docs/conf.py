"""Configuration of Sphinx: python -m sphinx -W --keep-going -b html docs OUT."""  # noqa: INP001

import os
import re
import sys
from importlib import import_module
from importlib.metadata import version as version_of
from pathlib import Path

import django
from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent.parent))
os.environ.setdefault("DEBUG", "1")
os.environ["DJANGO_SETTINGS_MODULE"] = "example_project.settings"
django.setup()  # the reference imports models
# autodoc imports with TYPE_CHECKING set; what is imported before, such as LangChain, is not affected.
for framework in ("langchain", "llama_index", "openai_agents", "pydantic_ai"):
    import_module(f"chatmemory_django.contrib.adapters.{framework}")

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


def setup(app: Sphinx) -> None:
    """Connect what changes sources before they are parsed."""
    app.connect("source-read", name_files_outside)
    app.connect("autodoc-process-docstring", separate_literals)
