"""
The cost of images in tokens, by the rules that OpenAI publishes for its models.

Source: "Images and vision", section "Calculating costs", https://developers.openai.com/api/docs/guides/images-vision,
read in November 2026 in the edition that covers GPT-5.5. What it leaves open was settled with bills that developers
compared at community.openai.com (threads 1281361, 1372291 and 1377015): sides are rounded to the nearest pixel, images
are never enlarged, models that use patches ignore a LOW detail, and GPT-5.2 to 5.5, for which no multiplier is
published, use 1.2.
"""

from __future__ import annotations

import base64
import io
import math
from typing import NamedTuple, TypeAlias

from chatmemory_django.messages import DetailLevel, Image
from chatmemory_django.tokens.encodings import base_model

UNKNOWN_SIZE = (1024, 1024)
"""The size assumed for an image that only has a URL or cannot be read: common for generated images and uploads."""

HEADER_LENGTH = 1 << 16
"""How many characters of Base64 hold the size of all but rare images; a multiple of 4."""

MAX_SIDE = 1 << 31
"""The longest side of an image; a header with a longer one is broken or malicious."""

_FROM_URL_SAFE = bytes.maketrans(b"-_", b"+/")


class Tiles(NamedTuple):
    """A cost for any image and, unless the detail is low, another for each square of 512 pixels."""

    base: int
    tile: int

    @property
    def name(self) -> str:
        """A short name, unique among the rules."""
        return f"{self.base}+{self.tile}"

    def cost(self, width: int, height: int, detail: DetailLevel) -> int:
        """Return the cost of an image fitted into 2048 x 2048, then shrunk to a short side of 768, then cut."""
        if detail is DetailLevel.LOW:
            return self.base
        width, height = _shrink(width, height, 2048 / max(width, height))
        width, height = _shrink(width, height, 768 / min(width, height))
        return self.base + self.tile * math.ceil(width / 512) * math.ceil(height / 512)


class Patches(NamedTuple):
    """A cost, in hundredths of a token, for each square of 32 pixels, of which there are at most *budget*."""

    hundredths: int
    budget: int = 1536
    auto_is_original: bool = False  # AUTO keeps up to 10,000 patches and 6,000 pixels a side

    @property
    def name(self) -> str:
        """A short name, unique among the rules."""
        return f"{self.budget}*{self.hundredths}{'a' if self.auto_is_original else ''}"

    def cost(self, width: int, height: int, detail: DetailLevel) -> int:
        """Return the cost of an image fitted into 2048 x 2048, then shrunk until its patches fit the budget."""
        original = self.auto_is_original and detail is DetailLevel.AUTO
        budget, side = (10_000, 6_000) if original else (self.budget, 2048)
        width, height = _shrink(width, height, side / max(width, height))
        if math.ceil(width / 32) * math.ceil(height / 32) > budget:
            scale = math.sqrt(budget * 32**2 / (width * height))
            columns, rows = width * scale / 32, height * scale / 32
            # A whole number of patches along one side, and no more than fit along the other.
            width, height = _shrink(width, height, scale * min(int(columns) / columns, int(rows) / rows))
        patches = math.ceil(width / 32) * math.ceil(height / 32)
        return -(-patches * self.hundredths // 100)


ImageRule: TypeAlias = Tiles | Patches

DEFAULT_RULE = Tiles(85, 170)
"""The rule of GPT-4o; also used for models that are not listed."""

_RULES: dict[str, ImageRule] = {
    # The longest prefix of a model's name applies.
    "gpt-4o": DEFAULT_RULE,
    "gpt-4o-mini": Tiles(2833, 5667),
    "gpt-4.1": DEFAULT_RULE,
    "gpt-4.1-mini": Patches(162),
    "gpt-4.1-nano": Patches(246),
    "gpt-4.5": DEFAULT_RULE,
    "gpt-5": Tiles(70, 140),
    "gpt-5-mini": Patches(162),
    "gpt-5-nano": Patches(246),
    "gpt-5.2": Patches(120),
    "gpt-5.3": Patches(120),
    "gpt-5.4": Patches(120, 2500),
    "gpt-5.4-mini": Patches(162),
    "gpt-5.4-nano": Patches(246),
    "gpt-5.5": Patches(120, 2500, auto_is_original=True),
    "o1": Tiles(75, 150),
    "o3": Tiles(75, 150),
    "o4": Patches(172),
    "computer-use-preview": Tiles(65, 129),
}


def image_rule(model_name: str) -> ImageRule:
    """Return the rule of a model; a fine-tuned one has the rule of the one it was made from."""
    base = base_model(model_name)
    prefix = max((prefix for prefix in _RULES if base.startswith(prefix)), key=len, default="gpt-4o")
    return _RULES[prefix]


def image_tokens(image: Image, detail: DetailLevel, rule: ImageRule) -> int:
    """Return the cost of *image* by *rule*; an unknown size counts as ``UNKNOWN_SIZE``. Nothing is downloaded."""
    return rule.cost(*(image_size(image) or UNKNOWN_SIZE), detail)


def image_size(image: Image) -> tuple[int, int] | None:
    """Return width and height in pixels, from ``base64_data`` or a data URL; None if they cannot be determined."""
    if image.file is not None:
        return None if image.file.width is None or image.file.height is None else (image.file.width, image.file.height)
    data = image.base64_data if image.base64_data is not None else _data_in_url(image.url)
    if not data:
        return None
    size = _size_in(data[:HEADER_LENGTH])
    return _size_in(data) if size is None and len(data) > HEADER_LENGTH else size


def _data_in_url(url: str | None) -> str | None:
    if url is None or url[:5].lower() != "data:":
        return None
    header, _, data = url.partition(",")
    return data if header.lower().endswith(";base64") else None


def _size_in(data: str) -> tuple[int, int] | None:
    # Imported here, like everything that only counting needs: importing the package must stay cheap.
    import imagesize

    try:
        characters = "".join(data.split()).rstrip("=").encode("ascii").translate(_FROM_URL_SAFE)
        # The last group of four may have been cut.
        groups = characters + b"A" * (-len(characters) % 4)
        width, height = imagesize.get(io.BytesIO(base64.b64decode(groups)))
    except Exception:  # noqa: BLE001  # users may send any bytes as an image, and a message must not fail because of them
        return None
    return (round(width), round(height)) if 1 <= width < MAX_SIDE and 1 <= height < MAX_SIDE else None


def _shrink(width: int, height: int, scale: float) -> tuple[int, int]:
    if scale >= 1:
        return width, height
    return max(1, round(width * scale)), max(1, round(height * scale))
