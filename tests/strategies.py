"""Hypothesis strategies for arbitrary messages; with *storable*, only those that a database can store."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from chatmemory_django.messages import (
    BLANK,
    AiMessage,
    Audio,
    AudioContent,
    CustomMessage,
    DetailLevel,
    Image,
    ImageContent,
    PdfFile,
    PdfFileContent,
    SystemMessage,
    TextContent,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
    Video,
    VideoContent,
)

IN_DATABASE = settings(
    max_examples=max(25, settings.default.max_examples // 5), suppress_health_check=list(HealthCheck)
)
"""Fewer examples for what needs a database: each takes about five times as long as one that does not."""

STORABLE = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
ODD = st.sampled_from(["\0", "\ud800", "\udbff", "\udc00", "\udfff", "😀", "\ufeff", "\u2028", "\xa0", '"', "\\"])


def texts(*, storable: bool = False, min_size: int = 0) -> st.SearchStrategy[str]:
    """Generate arbitrary texts; without *storable*, often with NUL and lone surrogates."""
    if storable:
        return st.text(STORABLE, min_size=min_size, max_size=30)
    pieces = st.lists(st.one_of(st.text(st.characters(), max_size=8), ODD), max_size=4)
    return pieces.map("".join).map(_paired).filter(lambda text: len(text) >= min_size)


def json_values(*, storable: bool = False) -> st.SearchStrategy:
    """Generate arbitrary JSON values."""
    leaves = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**40), 10**40),
        st.floats(allow_nan=False, allow_infinity=False),
        texts(storable=storable),
    )
    return st.recursive(
        leaves,
        lambda values: st.one_of(
            st.lists(values, max_size=3), st.dictionaries(texts(storable=storable), values, max_size=3)
        ),
        max_leaves=8,
    )


def attributes(*, storable: bool = False) -> st.SearchStrategy[dict]:
    """Generate attributes of a message, often none."""
    return st.one_of(st.just({}), st.dictionaries(texts(storable=storable), json_values(storable=storable), max_size=3))


def contents(*, storable: bool = False) -> st.SearchStrategy:
    """Generate contents of any type, including None."""
    text = st.one_of(st.none(), texts(storable=storable))
    media = {"url": text, "base64_data": text, "mime_type": text}
    binary_data = st.one_of(st.none(), st.binary(max_size=20))
    return st.one_of(
        st.builds(TextContent, texts(storable=storable)),
        st.builds(ImageContent, st.builds(Image, **media, revised_prompt=text), st.sampled_from(DetailLevel)),
        st.builds(AudioContent, st.one_of(st.none(), st.builds(Audio, **media, binary_data=binary_data))),
        st.builds(VideoContent, st.one_of(st.none(), st.builds(Video, **media))),
        st.builds(PdfFileContent, st.one_of(st.none(), st.builds(PdfFile, **media))),
        st.none(),
    )


def messages(*, storable: bool = False) -> st.SearchStrategy:
    """Generate messages of any type.

    The name of a user is never empty: LangChain4j's JSON cannot represent it, so it reads as None.
    """
    text = texts(storable=storable)
    maybe = st.one_of(st.none(), text)
    some_contents = st.one_of(text, st.lists(contents(storable=storable), min_size=1, max_size=4))
    some_attributes = attributes(storable=storable)
    return st.one_of(
        st.builds(SystemMessage, texts(storable=storable, min_size=1).filter(lambda text: text.strip(BLANK))),
        st.builds(
            UserMessage, some_contents, st.one_of(st.none(), texts(storable=storable, min_size=1)), some_attributes
        ),
        st.builds(
            AiMessage,
            maybe,
            maybe,
            st.lists(st.builds(ToolExecutionRequest, maybe, maybe, maybe), max_size=3),
            some_attributes,
        ),
        st.builds(
            ToolExecutionResultMessage,
            maybe,
            maybe,
            some_contents,
            st.one_of(st.none(), st.booleans()),
            some_attributes,
        ),
        st.builds(CustomMessage, some_attributes),
    )


def _paired(text: str) -> str:
    """Return *text* as JSON reads it back: two adjacent surrogate halves become one character."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
