"""A browser for tests: Debian's Chromium, driven by Playwright. Import ``needs_browser`` and ``chromium``."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

playwright = pytest.importorskip(
    "playwright.sync_api", reason="The browser tests require Playwright: pip install playwright"
)
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")

needs_browser = pytest.mark.skipif(
    CHROMIUM is None,
    reason="The browser tests require Chromium: apt-get install chromium, or set CHROMIUM to its path",
)

FLAGS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update "
    "--disable-sync"
)
PATIENCE = 120_000
"""Milliseconds after which a test gives up waiting for a page, on a machine that runs other tests beside."""

LAPTOP = {"width": 1366, "height": 768}
PHONE = {"width": 390, "height": 844}
FORMS = pytest.mark.parametrize(("theme", "viewport"), [("light", LAPTOP), ("dark", PHONE)], ids=["laptop", "phone"])
"""Each theme and each size once: colours do not depend on the size."""

CONTRAST = """element => {
    // The least contrast between the element's colour and its background, by WCAG's formula.
    const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
    const layers = [];
    for (let each = element; each; each = each.parentElement) layers.unshift(getComputedStyle(each).backgroundColor);
    canvas.fillStyle = getComputedStyle(document.documentElement).colorScheme === "dark" ? "black" : "white";
    canvas.fillRect(0, 0, 1, 1);
    for (const layer of layers) { canvas.fillStyle = layer; canvas.fillRect(0, 0, 1, 1); }
    const behind = canvas.getImageData(0, 0, 1, 1).data;
    canvas.fillStyle = getComputedStyle(element).color;
    canvas.fillRect(0, 0, 1, 1);
    const before = canvas.getImageData(0, 0, 1, 1).data;
    const light = ([r, g, b]) => [r, g, b].map(c => c / 255)
        .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    const [low, high] = [light(behind), light(before)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
}"""


class Remote:
    """A Playwright object, used from another thread.

    Playwright runs an event loop in its thread, and Django opens separate connections where an event loop runs.
    """

    def __init__(self, thread: ThreadPoolExecutor, target: object) -> None:
        self._thread, self._target = thread, target

    def __getattr__(self, name: str):
        value = self._thread.submit(getattr, self._target, name).result()
        return self._called(value) if callable(value) else self._wrapped(value)

    def _called(self, method):
        return lambda *args, **options: self._wrapped(self._thread.submit(method, *args, **options).result())

    def _wrapped(self, value):
        if isinstance(value, list):
            return [self._wrapped(each) for each in value]
        return Remote(self._thread, value) if type(value).__module__.startswith("playwright.") else value


@pytest.fixture(scope="module")
def chromium():
    with ThreadPoolExecutor(max_workers=1) as thread:
        running = Remote(thread, thread.submit(lambda: playwright.sync_playwright().start()).result())
        browser = running.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split(), timeout=PATIENCE)
        yield browser
        browser.close()
        running.stop()


def shoot(opened, name: str, *, full_page: bool = False) -> None:
    if folder := os.environ.get("SCREENSHOTS"):
        opened.screenshot(path=Path(folder) / f"{name}.png", full_page=full_page)


def overflow(opened) -> int:
    """Return how many pixels of the page extend beyond the right edge."""
    return opened.evaluate("document.documentElement.scrollWidth - window.innerWidth")
