"""The one form in which the admin shows a moment: the language's format, the active time zone, and its name."""

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
def test_a_moment_is_shown_as_the_language_writes_it_with_its_zone(language, zone, shown):
    with translation.override(language), timezone.override(zone):
        assert moment(MOMENT) == shown


def test_a_naive_moment_is_one_of_the_site_s_zone(settings):
    settings.USE_TZ = False
    settings.TIME_ZONE = "Europe/Berlin"

    with timezone.override("Asia/Tokyo"):
        assert moment(datetime.datetime(2026, 7, 1, 12, 0)) == "July 1, 2026, noon CEST"  # noqa: DTZ001  # naive
        # Twice that night, or never: then no zone can be named.
        assert moment(datetime.datetime(2026, 10, 25, 2, 30)) == "Oct. 25, 2026, 2:30 a.m."  # noqa: DTZ001


def test_templates_show_it_in_the_same_form():
    template = engines["django"].from_string("{% load chatmemory %}{{ value|moment }}")

    assert template.render({"value": MOMENT}) == "Nov. 21, 2026, 9:30 a.m. UTC"
