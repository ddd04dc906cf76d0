"""Markdown of users and models is rendered, and is harmless whatever it contains."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmemory_django.admin import markdown
from chatmemory_django.admin.markdown import MAX_ADDRESSES, MAX_RENDERED, NESTING, TAGS, Markdown
from chatmemory_django.admin.wording import EXCERPT
from chatmemory_django.messages import AiMessage, SystemMessage, ToolExecutionResultMessage, UserMessage
from tests.faces.admin.admin_site import EVERYTHING, conversation, page, staff
from tests.faces.admin.test_admin_hostile import Elements, assert_harmless

REL = "noopener noreferrer nofollow"


def rendered(text: str) -> str:
    html = Markdown().render(text)
    assert html is not None
    return " ".join(html.split())


def links(html: str) -> list[str | None]:
    return [attributes.get("href") for tag, attributes in Elements(html).found if tag == "a"]


def calls_to_render(text: str) -> int:
    """Return the number of function calls: a measure of time that is the same on every machine."""
    count = 0

    def note(*_event: object) -> None:
        nonlocal count
        count += 1

    page_of_texts, before = Markdown(), sys.getprofile()
    sys.setprofile(note)
    try:
        page_of_texts.render(text)
    finally:
        sys.setprofile(before)
    return count


class TestRendering:
    @pytest.mark.parametrize(
        ("text", "html"),
        [
            ("plain", "<p>plain</p>"),
            ("*a* **b** ~~c~~ `d`", "<p><em>a</em> <strong>b</strong> <s>c</s> <code>d</code></p>"),
            ("one\ntwo", "<p>one<br> two</p>"),
            ("- a\n- b", "<ul> <li>a</li> <li>b</li> </ul>"),
            ("3. a", '<ol start="3"> <li>a</li> </ol>'),
            ("> a", "<blockquote> <p>a</p> </blockquote>"),
            ("```python\n<b>\n```", "<pre><code>&lt;b&gt; </code></pre>"),
            ("---", "<hr>"),
            # The page has an outline of its own.
            ("# a", '<p class="cm-heading">a</p>'),
            (
                "|a|\n|-:|\n|b|",
                '<div class="cm-scroll" tabindex="0"><table><thead> <tr> <th>a</th> </tr> </thead> '
                "<tbody> <tr> <td>b</td> </tr> </tbody> </table></div>",
            ),
            ("<b>a</b> &amp; &lt;", "<p>&lt;b&gt;a&lt;/b&gt; &amp; &lt;</p>"),
        ],
    )
    def test_markdown_is_rendered(self, text, html):
        assert rendered(text) == html

    @pytest.mark.parametrize(
        ("text", "href", "shown"),
        [
            ("[a](https://example.com/?b=1&c=2)", "https://example.com/?b=1&amp;c=2", "a"),
            ("https://example.com/a.", "https://example.com/a", "https://example.com/a"),
            ("<https://example.com/>", "https://example.com/", "https://example.com/"),
            ("![a *cat*](https://example.com/a.png)", "https://example.com/a.png", "a *cat*"),
            ("![](https://example.com/a.png)", "https://example.com/a.png", "https://example.com/a.png"),
            ('[a](https://example.com/ "title")', "https://example.com/", "a"),
        ],
        ids=["link", "bare", "angled", "image", "nameless", "title"],
    )
    def test_links_and_images_become_links(self, text, href, shown):
        assert f'<a href="{href}" rel="{REL}">{shown}</a>' in rendered(text)

    def test_links_without_a_web_address_stay_text(self):
        text = "e.g.it example.com a@example.com ftp://example.com //example.com"

        assert rendered(text) == f"<p>{text}</p>"

    @pytest.mark.parametrize("text", ["[//]: # (hidden)", "[a]: https://example.com/hidden", "<!-- hidden -->"])
    def test_no_text_is_hidden(self, text):
        assert "hidden" in rendered(text)

    def test_markdown_nested_too_deeply_is_shown_as_text(self):
        assert "bottom" in rendered("> " * (NESTING - 2) + "bottom")
        assert Markdown().render("> " * NESTING + "bottom") is None


HOSTILE = [
    "[a](javascript:alert(1))",
    "[a](JaVaScRiPt:alert(1))",
    "[a](java&#10;script:alert(1))",
    "[a](&#x6A;avascript:alert(1))",
    "<javascript:alert(1)>",
    "[a](data:text/html;base64,PHNjcmlwdD4=)",
    "![a](data:image/svg+xml;base64,PHN2Zz4=)",
    "![a](javascript:alert(1))",
    "[a](vbscript:x) [b](file:///etc/passwd)",
    "[a](/admin/logout/) [b](//evil.example/) [c](?q=1) [d](#m-1)",
    "[a](https://bank.example@evil.example/)",
    "[a](https://evil.example/\u202egnp.exe)",
    '[a](https://example.com/"onmouseover="alert(1))',
    '![a"onerror="alert(1)](https://example.com/x)',
    '[a](https://example.com "\\"><script>alert(1)</script>")',
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<a href='javascript:alert(1)' style='position:fixed' target=_top>x</a>",
    "`<script>alert(1)</script>`",
    "```<script>\nalert(1)\n```",
    "    <script>alert(1)</script>",
    "| <script> |\n|---|\n| <img src=x onerror=alert(1)> |",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "&#60;script&#62;alert(1)",
    "[![a](https://a.example/x.png)](javascript:alert(1))",
    "# <style>*{display:none}</style>",
    "<div id=content-main class=cm-sent>",
    "\u202eevil \u2066x",
    "&#x202e;evil &#8294;x &#xfeff;",
    "\0 \x1b[31m \ud83d",
]


class TestHostile:
    @pytest.mark.parametrize("text", HOSTILE)
    def test_hostile_markdown_is_harmless(self, text):
        html = rendered(text)

        assert_harmless(html)
        assert {tag for tag, _ in Elements(html).found} <= TAGS
        for tag, attributes in Elements(html).found:
            assert attributes == {} or tag in {"a", "p", "div", "ol"}
            if tag == "a":
                assert attributes["href"].startswith("https://")
                assert set(attributes) == {"href", "rel"}
        html.encode()

    @given(
        st.lists(
            st.one_of(
                st.sampled_from([*HOSTILE, *"[]()!<>`*_~#|:-&\"'\n ", "https://", "javascript:", "\n\n", "> ", "- "]),
                st.text(max_size=5),
            ),
            max_size=30,
        ).map("".join)
    )
    def test_random_mixtures_of_hostile_markdown_are_harmless(self, text):
        html = Markdown().render(text[:EXCERPT]) or ""

        assert_harmless(html)
        assert {tag for tag, _ in Elements(html).found} <= TAGS
        # nh3 returns None for an address that no browser would open.
        assert all(href is None or href.startswith(("http://", "https://")) for href in links(html))

    @pytest.mark.parametrize(
        "unit",
        [
            *("[", "![[", "[](", "]", "`", "``` ", "*", "*a ", "_a__", "~~a ", "<", "<http:", "&", "&#x202e;", "\\"),
            *("> ", "- ", "1. ", "* a\n", "1) a\n", "# a\n", "|a", "|\n", "```\n", ">\n", "\n", "\t", "a."),
            *("http://", "http://a.b ", "//", "@", "mailto:", "[a](", '[a](b "', "[a](<b", "[a]: b\n", "()"),
            *("\u202e", "\0", "a|b\n-|-\n"),
        ],
    )
    def test_rendering_time_is_linear_in_the_length(self, unit):
        Markdown().render("http://a.b")  # Imports and compiled patterns count once.
        short, long = (calls_to_render(unit * (length // len(unit))) for length in (EXCERPT // 4, EXCERPT))

        assert long < 5 * short
        assert long < 400 * EXCERPT  # Calls; the worst takes 317 per character.

    @pytest.mark.parametrize("rows", [1, 10, 100], ids="{}-rows".format)
    def test_cells_that_are_missing_in_tables_take_no_time(self, rows):
        columns = 50
        table = "|a" * columns + "\n" + "|-" * columns + "\n" + "|\n" * rows + "\n"
        Markdown().render("http://a.b")
        short, long = (calls_to_render(table * (length // len(table))) for length in (EXCERPT // 4, EXCERPT))

        assert long < 5 * short
        assert long < 400 * EXCERPT

    def test_a_table_that_has_its_cells_is_one(self):
        table = "|a|b|\n|-|-|\n" + "|c|d|\n" * 500

        assert rendered(table).count("<td>") == 1_000
        quoted = "".join(f"> {line}\n" for line in table.splitlines())
        assert rendered(quoted).startswith("<blockquote> <div")

    def test_a_text_of_very_many_addresses_has_no_links(self):
        many = "https://example.com/ " * (MAX_ADDRESSES - 1)

        assert len(links(rendered(f"{many} [a](https://example.com/)"))) == MAX_ADDRESSES
        assert links(rendered(f"{many} http://a.b [a](https://example.com/)")) == ["https://example.com/"]
        assert "<p>https://example.com/ " in rendered(f"{many} http://a.b http://a.b")

    def test_a_page_stops_rendering_at_its_time_limit(self, monkeypatch):
        monkeypatch.setattr(markdown, "MAX_RENDERED", 10)
        page_of_texts = Markdown()

        assert [page_of_texts.render(text) for text in ("*a*", "*too long*", "*b*")] == [
            "<p><em>a</em></p>\n",
            None,
            "<p><em>b</em></p>\n",
        ]
        assert MAX_RENDERED <= 100_000


@pytest.mark.django_db
class TestPages:
    @pytest.fixture
    def reader(self, client):
        client.force_login(staff(*EVERYTHING))
        return client

    def html(self, client, talk) -> str:
        return client.get(page("change", talk.pk)).content.decode()

    def test_only_user_and_ai_messages_are_markdown(self, reader):
        talk = conversation(
            SystemMessage("*system*"),
            UserMessage("*user*"),
            AiMessage("*ai*", "*thought*"),
            ToolExecutionResultMessage("1", "t", "*tool*"),
            memory_id="c",
        )

        html = self.html(reader, talk)

        assert "<em>user</em>" in html
        assert "<em>ai</em>" in html
        for text in ("*system*", "*thought*", "*tool*"):
            assert text in html

    def test_the_page_of_a_message_shows_its_source(self, reader):
        talk = conversation(UserMessage("*user*"))

        html = reader.get(page("message", talk.pk, 1)).content.decode()

        assert "*user*" in html
        assert "<em>" not in html

    def test_without_the_extra_markdown_is_text(self, reader, monkeypatch):
        monkeypatch.setattr(markdown, "IS_INSTALLED", False)
        talk = conversation(UserMessage("*user* <b>"))

        assert "*user* &lt;b&gt;" in self.html(reader, talk)

    def test_a_long_text_is_truncated_before_rendering(self, reader):
        talk = conversation(UserMessage("*a* " * 100_000))

        html = self.html(reader, talk)

        assert html.count("<em>a</em>") == EXCERPT // 4
        assert "Truncated; the full text has 400,000 characters." in html

    @pytest.mark.slow
    def test_a_page_of_worst_cases_stays_within_the_limit(self, reader):
        talk = conversation(*[UserMessage("![[" * (EXCERPT // 3))] * 50)

        html = self.html(reader, talk)

        assert html.count("cm-markdown") == MAX_RENDERED // (EXCERPT // 3 * 3)
