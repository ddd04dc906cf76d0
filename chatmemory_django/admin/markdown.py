"""
Markdown, written by anybody, as HTML that is safe to show, if the extra ``markdown`` is installed.

HTML in it is text, an image is a link, and links lead to plain addresses on the web. What would not be seen is left as
it is written: definitions of references, for example. nh3 has the last word on every element and attribute.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from chatmemory_django.admin.media import is_link
from chatmemory_django.admin.wording import visible

try:
    import linkify_it  # noqa: F401  # markdown_it asks for it only once there is something to render
    import nh3
    from markdown_it import MarkdownIt
except ImportError:
    IS_INSTALLED = False
else:
    IS_INSTALLED = True

if TYPE_CHECKING:
    from markdown_it.renderer import RendererHTML
    from markdown_it.token import Token

MAX_RENDERED = 100_000
"""How many characters are rendered for a page: hostile ones take up to a second and a half, others a fifth of it."""

NESTING = 20
"""How deep quotes and lists are nested at most; markdown_it leaves out what is deeper, so it is not rendered at all."""

ATTRIBUTES: dict[str, set[str]] = {
    "*": set(),  # no title, which is seen by nobody who does not look for it
    "a": {"href"},
    "ol": {"start"},
    "p": {"class"},
    "div": {"class", "tabindex"},
}
TAGS = {
    *("p", "div", "br", "hr", "blockquote", "pre", "code", "ul", "ol", "li", "a", "em", "strong", "s"),
    *("table", "thead", "tbody", "tr", "th", "td"),
}


class Markdown:
    """Renders the texts of a page."""

    def __init__(self) -> None:
        self._left = MAX_RENDERED
        self._parser = _parser() if IS_INSTALLED else None

    def render(self, text: str) -> SafeString | None:
        """*text* as HTML; None where it can only be shown as it is."""
        if self._parser is None or len(text) > self._left:
            return None
        self._left -= len(text)
        tokens = self._parser.parse(visible(text))
        if any(token.nesting == 1 and token.level >= NESTING - 1 for token in tokens):
            return None
        html = nh3.clean(
            self._parser.renderer.render(tokens, self._parser.options, {}),
            tags=TAGS,
            attributes=ATTRIBUTES,
            url_schemes={"http", "https"},
            link_rel="noopener noreferrer nofollow",
        )
        # Once more, since "&#x202e;" is a character by now. It adds no markup to what nh3 made safe.
        return mark_safe(visible(html))  # noqa: S308


def _parser() -> MarkdownIt:
    class Parser(MarkdownIt):
        def validateLink(self, url: str) -> bool:  # noqa: N802  # markdown_it's name
            return is_link(url)

    options = {"html": False, "linkify": True, "breaks": True, "maxNesting": NESTING}
    parser = Parser("commonmark", options)
    parser.enable(["table", "strikethrough", "linkify"]).disable("reference")
    if parser.linkify is not None:
        parser.linkify.set({"fuzzy_link": False, "fuzzy_email": False})  # "e.g.it" is no address
    parser.add_render_rule("image", _image)
    parser.add_render_rule("heading_open", lambda *_: '<p class="cm-heading">')  # the page has an outline of its own
    parser.add_render_rule("heading_close", lambda *_: "</p>")
    parser.add_render_rule("table_open", lambda *_: '<div class="cm-scroll" tabindex="0"><table>')
    parser.add_render_rule("table_close", lambda *_: "</table></div>")
    return parser


def _image(renderer: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    """To load it would tell whoever wrote this that, when and from where it is read."""
    address = tokens[index].attrs["src"]
    return format_html('<a href="{}">{}</a>', address, tokens[index].content or address)
