import base64
import struct

import pytest

from chatmemory_django.messages import DetailLevel, Image
from chatmemory_django.tokens.images import (
    DEFAULT_RULE,
    HEADER_LENGTH,
    UNKNOWN_SIZE,
    Patches,
    Tiles,
    image_rule,
    image_size,
    image_tokens,
)

LOW, MEDIUM, HIGH, ULTRA_HIGH, AUTO = (
    DetailLevel.LOW,
    DetailLevel.MEDIUM,
    DetailLevel.HIGH,
    DetailLevel.ULTRA_HIGH,
    DetailLevel.AUTO,
)


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">L4sLLBBBBB", 13, b"IHDR", width, height, 8, 2, 0, 0, 0) + bytes(40)


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + bytes(30)


def jpeg(width: int, height: int, *, metadata: int = 0) -> bytes:
    """Return the headers of a JPEG, with *metadata* application segments of 64 kB before the one with the size."""
    segments = (b"\xff\xe1" + struct.pack(">H", 65_535) + bytes(65_533)) * metadata
    return b"\xff\xd8" + segments + b"\xff\xc0" + struct.pack(">HBHHB", 17, 8, height, width, 3) + bytes(60)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


class TestRules:
    """The examples in OpenAI's guide, and costs that developers published."""

    @pytest.mark.parametrize(
        ("model_name", "size", "detail", "expected"),
        [
            # the guide
            ("gpt-4o", (1024, 1024), HIGH, 765),
            ("gpt-4o", (2048, 4096), HIGH, 1105),
            ("gpt-4o", (4096, 8192), LOW, 85),
            ("gpt-5", (1024, 1024), HIGH, 70 + 4 * 140),
            ("gpt-4o-mini", (1024, 1024), HIGH, 2833 + 4 * 5667),
            ("gpt-4o-mini", (1024, 1024), LOW, 2833),
            ("o3", (1024, 1024), HIGH, 75 + 4 * 150),
            ("computer-use-preview", (1024, 1024), HIGH, 65 + 4 * 129),
            ("gpt-4.1-mini", (1024, 1024), HIGH, 1659),  # 1,024 patches
            ("gpt-4.1-mini", (1800, 2400), HIGH, 2353),  # 1,452 patches
            ("o4-mini", (1800, 2400), HIGH, 2498),
            ("gpt-5-nano", (1800, 2400), HIGH, 3572),
            ("gpt-4.1-nano", (32, 32), HIGH, 3),
            # community.openai.com, thread 1281361: the sides are rounded
            ("gpt-4.1", (2049, 513), HIGH, 1445),
            ("gpt-4.1", (2050, 513), HIGH, 765),
            ("gpt-4.1-mini", (4000, 1474), HIGH, 2489),  # 1,536 patches
            # never enlarged
            ("gpt-4o", (512, 512), HIGH, 85 + 170),
            ("gpt-4o", (1, 1), HIGH, 85 + 170),
            ("gpt-4o", (100_000, 1), HIGH, 85 + 4 * 170),
            ("gpt-5-mini", (100_000, 1), HIGH, 104),
            # larger budgets
            ("gpt-5.4", (1600, 1600), HIGH, 3000),
            ("gpt-5.4", (5000, 5000), AUTO, 3000),
            ("gpt-5.5", (5000, 5000), HIGH, 3000),
            ("gpt-5.5", (5000, 5000), AUTO, 12_000),
        ],
    )
    def test_the_cost_of_an_image(self, model_name, size, detail, expected):
        assert image_rule(model_name).cost(*size, detail) == expected

    @pytest.mark.parametrize("detail", [MEDIUM, HIGH, ULTRA_HIGH, AUTO])
    def test_every_detail_except_low_costs_all_tiles(self, detail):
        assert DEFAULT_RULE.cost(1024, 1024, detail) == 765

    def test_patches_cost_the_same_at_low_detail(self):
        rule = image_rule("gpt-5-mini")

        assert rule.cost(1024, 1024, LOW) == rule.cost(1024, 1024, HIGH)

    @pytest.mark.parametrize("rule", [Patches(100), Patches(100, 2500), Patches(100, 2500, auto_is_original=True)])
    def test_patches_never_exceed_their_budget(self, rule):
        for width in (*range(1, 4000, 97), 65_535):
            for height in (*range(1, 4000, 89), 65_535):
                assert 0 < rule.cost(width, height, HIGH) <= rule.budget
                assert 0 < rule.cost(width, height, AUTO) <= 10_000


class TestModels:
    @pytest.mark.parametrize(
        ("model_name", "rule"),
        [
            ("gpt-4o-2024-11-20", Tiles(85, 170)),
            ("chatgpt-4o-latest", Tiles(85, 170)),
            ("gpt-4o-mini-2024-07-18", Tiles(2833, 5667)),
            ("ft:gpt-4o-mini:me", Tiles(2833, 5667)),
            ("gpt-4.1-2025-04-14", Tiles(85, 170)),
            ("gpt-4.1-mini-2025-04-14", Patches(162)),
            ("gpt-4.5-preview", Tiles(85, 170)),
            ("gpt-5-chat-latest", Tiles(70, 140)),
            ("gpt-5-nano", Patches(246)),
            ("gpt-5.4-mini", Patches(162)),
            ("o1-pro", Tiles(75, 150)),
            ("o4-mini-2025-04-16", Patches(172)),
            ("something-else", DEFAULT_RULE),
        ],
    )
    def test_a_model_uses_the_rule_of_its_family(self, model_name, rule):
        assert image_rule(model_name) == rule


class TestSize:
    @pytest.mark.parametrize(
        "image",
        [
            Image(base64_data=encoded(png(640, 480))),
            Image(base64_data=encoded(gif(640, 480)), url="https://example.org/other.png"),
            Image(base64_data=encoded(jpeg(640, 480)), mime_type="image/png"),
            Image(base64_data="\r\n".join(encoded(png(640, 480)))),
            Image(base64_data=base64.urlsafe_b64encode(png(640, 480) + b"\xff\xfe\xfb" * 9).decode().rstrip("=")),
            Image(url=f"data:image/png;base64,{encoded(png(640, 480))}"),
            Image(url=f"DATA:;Base64,{encoded(gif(640, 480))}"),
        ],
    )
    def test_the_size_is_read_from_the_content(self, image):
        assert image_size(image) == (640, 480)

    @pytest.mark.parametrize("metadata", [0, 1, 5])
    def test_the_size_is_found_after_any_amount_of_metadata(self, metadata):
        assert image_size(Image(base64_data=encoded(jpeg(4000, 3000, metadata=metadata)))) == (4000, 3000)

    def test_only_the_beginning_of_a_large_image_is_decoded(self, monkeypatch):
        decoded = []
        decode = base64.b64decode
        monkeypatch.setattr(base64, "b64decode", lambda data: decoded.append(len(data)) or decode(data))

        assert image_size(Image(base64_data=encoded(png(640, 480) + bytes(10**7)))) == (640, 480)
        assert decoded == [HEADER_LENGTH]

    @pytest.mark.parametrize(
        "image",
        [
            Image(),
            Image(url="https://example.org/a.png"),
            Image(url="data:image/svg+xml,<svg/>"),
            Image(url="data:"),
            Image(base64_data=""),
            Image(base64_data="aGVsbG8="),
            Image(base64_data="no Base64: ünï"),
            Image(base64_data=encoded(png(640, 480)[:18])),
            Image(base64_data=encoded(png(0, 480))),
            Image(base64_data=encoded(png(2**32 - 1, 480))),
            Image(base64_data=encoded(jpeg(4000, 3000, metadata=3)[:-70])),
            Image(base64_data=encoded(f'<svg width="{"9" * 400}" height="1">'.encode())),
            Image(base64_data="/" * 500_000),
        ],
    )
    def test_an_unknown_size_costs_the_documented_default(self, image):
        assert image_size(image) is None
        assert image_tokens(image, HIGH, DEFAULT_RULE) == DEFAULT_RULE.cost(*UNKNOWN_SIZE, HIGH)

    def test_an_error_of_the_image_reader_does_not_break_the_count(self, monkeypatch):
        monkeypatch.setattr("imagesize.get", lambda file: 1 / 0)

        assert image_size(Image(base64_data=encoded(png(640, 480)))) is None
