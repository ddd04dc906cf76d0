"""Characters with effects that a reader does not see."""

import re

# Control characters, which are dangerous when pasted into a terminal; characters that change the direction of the text
# that follows; lone surrogates, which cannot be encoded. Line feeds and tabs are allowed.
_UNSEEN = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def visible(text: str) -> str:
    """Return *text* with invisible characters that have effects replaced by their names: ``⟦U+202E⟧``."""
    return _UNSEEN.sub(lambda match: f"⟦U+{ord(match[0]):04X}⟧", text.replace("\r\n", "\n"))
