"""What the page reads of ``CHATMEMORY``."""

from collections.abc import Mapping
from typing import Annotated

from chatmemory_django.conf import Rule, Section, Switch

_ARE_NAMED = Rule(
    "a dict of names for people, by values that are texts",
    lambda value: isinstance(value, Mapping) and all(isinstance(each, str) for each in value),
    'For example {"gpt-5": "Thorough", "gpt-5-mini": "Quick"}.',
)


class Page(Section):
    """``PAGE``: the settings of the chat page, and the defaults of ``{% chat_widget %}``."""

    key = "PAGE"
    ids = ("chatmemory.E091", "chatmemory.W091", "chatmemory.E092")
    hint = 'Write "PAGE": {"BASE": "base.html"}, for example.'

    BASE: Annotated[str, Rule("the name of a template", lambda value: isinstance(value, str) and value != "")] = (
        "chatmemory_page/base.html"
    )
    """The template that the page extends; it has a block ``content``."""
    MEMORY: Switch = True
    """Whether people see what is in the memory, and what has left it."""
    ASSISTANTS: Annotated[Mapping[str, object], _ARE_NAMED] = {}
    """What people read in place of the names in ``CHAT["ASSISTANTS"]``; texts may be lazy."""
    MODELS: Annotated[Mapping[str, object], _ARE_NAMED] = {}
    """What people choose from: ``model`` in the body of a question, and what they read."""


page_settings = Page.current
