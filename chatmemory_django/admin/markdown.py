"""
Rendering of untrusted Markdown as safe HTML, if the extra ``markdown`` is installed.

Raw HTML is escaped, images become links, and only plain http(s) addresses become links. Syntax that would render as
nothing, such as reference definitions, is shown as written. nh3 finally removes any element or attribute that is not
allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from chatmemory_django.admin.media import is_link
from chatmemory_django.core.shown import visible

try:
    import linkify_it  # noqa: F401  # markdown_it imports it only when it renders
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
"""Maximum number of characters rendered for a page: about 0.3 s, or 1 s for hostile input."""

MAX_ADDRESSES = 100
"""Maximum number of addresses in a text that become links: finding more would take time with the square of them."""

NESTING = 20
"""Maximum depth of quotes and lists. markdown_it drops what is deeper, so such a text is not rendered at all."""

ATTRIBUTES: dict[str, set[str]] = {
    "*": set(),  # no title: it would be hidden until hovered over
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
    """A renderer for the texts of one page, up to ``MAX_RENDERED`` characters in total."""

    def __init__(self) -> None:
        self._left = MAX_RENDERED
        self._parser = _parser() if IS_INSTALLED else None

    def render(self, text: str) -> SafeString | None:
        """Return *text* as HTML; None if it should be displayed as plain text."""
        if self._parser is None or len(text) > self._left:
            return None
        self._left -= len(text)
        self._parser.options["linkify"] = text.count("://") <= MAX_ADDRESSES
        shown = visible(text)
        (self._parser.enable if _cells(shown) <= len(shown) else self._parser.disable)("table")
        tokens = self._parser.parse(shown)
        if any(token.nesting == 1 and token.level >= NESTING - 1 for token in tokens):
            return None
        html = nh3.clean(
            self._parser.renderer.render(tokens, self._parser.options, {}),
            tags=TAGS,
            attributes=ATTRIBUTES,
            url_schemes={"http", "https"},
            link_rel="noopener noreferrer nofollow",
        )
        # Again, since entities such as "&#x202e;" are characters now. This adds no markup to what nh3 returned.
        return mark_safe(visible(html))  # noqa: S308


def _cells(text: str) -> int:
    """
    Return how many cells the tables in *text* have at most, those included that are missing in its short rows.

    These are added for each row, so that a few characters make thousands. A table with all of its cells has fewer than
    characters.
    """
    cells = columns = 0
    for line in text.split("\n"):
        if not line.strip("> \t"):
            columns = 0
        elif "-" in line and _DELIMITERS.issuperset(line):
            columns = max(columns, line.count("|") + 1)
        cells += columns
    return cells


_DELIMITERS = frozenset("|:- \t>*+.)0123456789")
"""The characters of the line under the head of a table, which may be in a quotation or a list."""


def _parser() -> MarkdownIt:
    class Parser(MarkdownIt):
        def validateLink(self, url: str) -> bool:  # noqa: N802  # markdown_it's name
            return is_link(url)

    options = {"html": False, "linkify": True, "breaks": True, "maxNesting": NESTING}
    parser = Parser("commonmark", options)
    parser.enable(["table", "strikethrough", "linkify"]).disable("reference")
    if parser.linkify is not None:
        parser.linkify.set({"fuzzy_link": False, "fuzzy_email": False})  # "e.g.it" is not an address
    parser.add_render_rule("image", _image)
    parser.add_render_rule("heading_open", lambda *_: '<p class="cm-heading">')  # no <h1>: the page has its own
    parser.add_render_rule("heading_close", lambda *_: "</p>")
    parser.add_render_rule("table_open", lambda *_: '<div class="cm-scroll" tabindex="0"><table>')
    parser.add_render_rule("table_close", lambda *_: "</table></div>")
    return parser


def _image(renderer: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    """Render an image as a link: loading it would reveal to its author when and from where the message is read."""
    address = tokens[index].attrs["src"]
    return format_html('<a href="{}">{}</a>', address, tokens[index].content or address)
