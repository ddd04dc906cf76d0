"""The patterns that read what users, models and files write take time in proportion to its length."""

import time

import pytest

from chatmemory_django.admin.media import is_link
from chatmemory_django.core.excerpts import terms_of
from chatmemory_django.core.media import file_of
from chatmemory_django.core.shown import visible
from chatmemory_django.formats.openai_files import to_image
from chatmemory_django.messages import Image
from chatmemory_django.rest.fields import _located
from chatmemory_django.tokens.openai import _PIECE
from tests.quick import mostly_slow

LENGTH = 200_000
"""What grows with the square takes minutes for as many characters."""

READERS = {
    "a data URL": lambda text: file_of(Image(url=text)),
    "a data URL of OpenAI's API": to_image,
    "an address in the admin": is_link,
    "a text in the admin": visible,
    "an error of msgspec": _located,
    "a search": terms_of,
    "pieces of a text to count": lambda text: sum(1 for _ in _PIECE.finditer(text)),
}
BEGINNINGS = ("", "data:", "data:image/png;base64,", "https://", "https://a/", "image/", "x - at `$.")
UNITS = ("a", " ", ";", ",", ":", "/", ".", '"', "`", ";a", "a ", ' "a', "data:", "; a=a", " - at `$", "\u202e")


@pytest.mark.parametrize("reader", mostly_slow(READERS, one_in=3))
def test_a_long_text_is_read_in_time(reader):
    start = time.thread_time()
    for beginning in BEGINNINGS:
        for unit in UNITS:
            READERS[reader](beginning + unit * (LENGTH // len(unit)) + "!`")

    # Some 100 texts of 200,000 characters: each takes some milliseconds.
    assert time.thread_time() - start < 20
