"""How the admin shows date and time: the format of the language, the active time zone, and its name."""

import datetime

import pytest
from django.template import engines
from django.utils import timezone, translation

from chatmemory_django.admin.wording import moment

MOMENT = datetime.datetime(2026, 11, 21, 9, 30, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("language", "zone", "shown"),
    [
        ("en", "UTC", "Nov. 21, 2026, 9:30 a.m. UTC"),
        ("en", "America/New_York", "Nov. 21, 2026, 4:30 a.m. EST"),
        ("de", "Europe/Berlin", "21. November 2026 10:30 CET"),
        ("ja", "Asia/Tokyo", "2026年11月21日18:30 JST"),
    ],
)
def test_a_datetime_is_shown_in_the_language_s_format_with_its_time_zone(language, zone, shown):
    with translation.override(language), timezone.override(zone):
        assert moment(MOMENT) == shown


def test_a_naive_datetime_is_in_the_time_zone_of_the_site(settings):
    settings.USE_TZ = False
    settings.TIME_ZONE = "Europe/Berlin"

    with timezone.override("Asia/Tokyo"):
        assert moment(datetime.datetime(2026, 7, 1, 12, 0)) == "July 1, 2026, noon CEST"  # noqa: DTZ001  # naive
        # Ambiguous or nonexistent that night: no zone can be named.
        assert moment(datetime.datetime(2026, 10, 25, 2, 30)) == "Oct. 25, 2026, 2:30 a.m."  # noqa: DTZ001


def test_templates_use_the_same_format():
    template = engines["django"].from_string("{% load chatmemory %}{{ value|moment }}")

    assert template.render({"value": MOMENT}) == "Nov. 21, 2026, 9:30 a.m. UTC"
