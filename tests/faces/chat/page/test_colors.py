"""The colors of the chat page can be read in both color schemes: WCAG's contrast of level AA, from the style sheet."""

import re

import pytest

from chatmemory_django.chat.page import modules

STYLES = (modules.FOLDER / "page.css").read_text()
COLORS = {name: given.split(", ") for name, given in re.findall(r"--(\S+): var\(--\S+, light-dark\((.+?)\)\);", STYLES)}
BEHIND = {
    "comment string number keyword": "side",
    "ink": "paper side raised soft",
    "quiet": "paper side raised soft",
    "accent": "paper side raised",
    "danger": "paper side raised",
    "on-accent": "accent",
    "on-danger": "danger",
}
"""On what texts of each color are."""

PAIRS = [(text, behind) for texts, places in BEHIND.items() for text in texts.split() for behind in places.split()]


def luminance(color: str) -> float:
    digits = color.removeprefix("#")
    digits = "".join(digit * 2 for digit in digits) if len(digits) == 3 else digits
    channels = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
    return sum(weight * each for weight, each in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def test_the_contrast_is_wcags():
    assert contrast("#fff", "#000") == pytest.approx(21)
    assert contrast("#777", "#fff") == pytest.approx(4.48, abs=0.005)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(("text", "behind"), PAIRS)
def test_texts_can_be_read(text, behind, scheme):
    assert contrast(COLORS[text][scheme], COLORS[behind][scheme]) >= 4.5
