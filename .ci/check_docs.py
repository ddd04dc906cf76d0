"""Check what Sphinx does not: ``python .ci/check_docs.py docs OUT``, after the HTML was built in OUT."""

import re
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_TO_FILE = re.compile(r"\]\(((?:\.\./)+[^)#\s]+)")
_SIGNATURE = re.compile(r'<dt class="sig [^>]*>.*?</dt>', re.DOTALL)
_UNREADABLE = re.compile(r"~|<\w+(?: [^<>]*)?>|(?<![\w.])_[A-Za-z]\w*")
_LOADING = {"img": "src", "script": "src", "link": "href", "source": "src", "iframe": "src"}
_NOT_LOADED = {"canonical", "index", "next", "prev", "search", "author", "copyright"}


class Html(HTMLParser):
    """The ids of a page, its links, and what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if "id" in found:
            self.ids.add(found["id"])
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        name = _LOADING.get(tag)
        if name in found and found.get("rel") not in _NOT_LOADED:
            self.loaded.append(found[name])


def problems_of_sources(docs: Path) -> list[str]:
    """Return which pages cannot be built, and which links lead to missing files outside of *docs*."""
    found = [
        f"{docs / name} is overwritten by a page that Sphinx writes; rename it."
        for name in ("genindex.md", "search.md")
        if (docs / name).exists()
    ]
    for page in sorted(docs.rglob("*.md")):
        found += [
            f"{page} links to {link}, which does not exist."
            for link in _TO_FILE.findall(page.read_text())
            if not (page.parent / link).exists()
        ]
    return found


def problems_of_html(out: Path) -> list[str]:
    """Return which internal links, anchors and files are missing, and what is loaded from elsewhere."""
    pages = {path.resolve(): Html(path) for path in sorted(out.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        name = path.relative_to(out.resolve())
        found += [f"{name} loads {url} from elsewhere." for url in page.loaded if urlsplit(url).netloc]
        for url in [*page.links, *page.loaded]:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                found.append(f"{name} leads to {url}, which does not exist.")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in {"", *pages[target].ids}:
                found.append(f"{name} leads to {url}, an anchor that does not exist.")
    if not pages:
        found.append(f"{out} contains no HTML.")
    return found


def problems_of_signatures(out: Path) -> list[str]:
    """Return which signatures have what no person writes: a tilde, a value in angle brackets, a private name."""
    found = []
    for path in sorted(out.rglob("*.html")):
        for shown in _SIGNATURE.findall(path.read_text()):
            signature = " ".join(unescape(re.sub(r"<[^>]+>", "", shown)).split())
            if unreadable := _UNREADABLE.search(signature):
                found.append(f"{path.relative_to(out)} has {unreadable[0]!r} in the signature {signature[:80]!r}.")
    return found


if __name__ == "__main__":
    out = Path(sys.argv[2])
    problems = [*problems_of_sources(Path(sys.argv[1])), *problems_of_html(out), *problems_of_signatures(out)]
    sys.stdout.writelines(f"{problem}\n" for problem in problems)
    sys.exit(bool(problems))
