"""Navigation between the messages of a conversation."""

import datetime
import re

import pytest
from django.utils import timezone

from chatmemory_django.admin.navigation import on
from chatmemory_django.admin.transcript import PAGE
from chatmemory_django.messages import AiMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from tests.faces.admin.admin_site import EVERYTHING, conversation, long_conversation, page, staff
from tests.faces.admin.test_admin_hostile import BREAK_OUT, assert_harmless

pytestmark = pytest.mark.django_db

HOUR = datetime.timedelta(hours=1)


@pytest.fixture
def reader(client):
    client.force_login(staff(*EVERYTHING))
    return client


def hourly(length: int, begin: str = "2026-01-01T00:30:00+00:00") -> Conversation:
    """Create a conversation with one message per hour."""
    talk = long_conversation(length)
    moment = datetime.datetime.fromisoformat(begin)
    rows = list(talk.messages.all())
    for row in rows:
        row.created_at = moment + (row.sequence - 1) * HOUR
    Message.objects.bulk_update(rows, ["created_at"], batch_size=100)
    return talk


def landed(client, talk, day: str) -> tuple[int | None, str]:
    """Return the message at which a jump to *day* lands, and the notice shown."""
    response = client.get(page("change", talk.pk), {"on": day})
    assert response.status_code == 302
    address, _, anchor = response["Location"].partition("#m-")
    html = client.get(address).content.decode()
    assert not anchor or f'id="m-{anchor}"' in html
    notice = re.search(r'<li class="(?:info|warning)">(.*?)</li>', html, re.DOTALL)
    return int(anchor) if anchor else None, notice[1].strip() if notice else ""


class TestToADay:
    def test_it_lands_at_the_first_message_of_that_day(self, reader):
        talk = hourly(100)

        assert landed(reader, talk, "2026-01-01") == (1, "")
        assert landed(reader, talk, "2026-01-02") == (25, "")
        assert landed(reader, talk, "2026-01-05") == (97, "")

    def test_a_message_at_midnight_belongs_to_the_new_day(self, reader):
        talk = hourly(50, begin="2026-01-01T00:00:00+00:00")

        assert landed(reader, talk, "2026-01-02") == (25, "")

    def test_days_begin_in_the_active_time_zone(self, reader, settings):
        settings.TIME_ZONE = "Asia/Tokyo"
        talk = hourly(100)

        assert landed(reader, talk, "2026-01-02") == (16, "")  # 15:30 UTC

    def test_a_day_without_messages_leads_to_the_next_message_with_a_notice(self, reader):
        talk = hourly(10)
        Message.objects.filter(sequence__gt=5).update(created_at=datetime.datetime(2026, 1, 9, tzinfo=datetime.UTC))

        assert landed(reader, talk, "2026-01-03") == (
            6,
            "There are no messages from Jan. 3, 2026; this is the first one after that day.",
        )

    def test_days_outside_the_conversation_lead_to_its_first_or_last_message(self, reader):
        talk = hourly(10)

        assert landed(reader, talk, "0001-01-01")[0] == 1
        assert landed(reader, talk, "9999-12-31") == (
            10,
            "There are no messages from Dec. 31, 9999 or later; this is the last one.",
        )

    @pytest.mark.parametrize("day", ["", "x", "2026-02-30", "2026-13-01", "0000-01-01", "10000-01-01", "²", BREAK_OUT])
    def test_an_invalid_date_is_reported(self, reader, day):
        talk = hourly(3)

        sequence, notice = landed(reader, talk, day)

        assert sequence is None
        assert "is not a valid date. Use the format 2026-11-21." in notice

    def test_an_invalid_date_is_repeated_truncated_and_escaped(self, reader):
        talk = hourly(3)

        response = reader.get(page("change", talk.pk), {"on": BREAK_OUT + "\u202e" + "x" * 10_000}, follow=True)

        assert_harmless(response.content.decode())
        assert "x" * 41 not in response.content.decode()

    def test_an_empty_conversation_has_no_days(self, reader):
        assert landed(reader, Conversation.objects.create(memory_id="empty"), "2026-01-01") == (
            None,
            "There are no messages.",
        )

    def test_deleted_messages_do_not_matter(self):
        talk = hourly(100)
        Message.objects.filter(sequence__range=(1, 30)).delete()
        Message.objects.filter(sequence__range=(40, 96)).delete()

        assert on(talk, datetime.date(2026, 1, 1)).sequence == 31
        assert on(talk, datetime.date(2026, 1, 3)).sequence == 97
        assert on(talk, datetime.date(2026, 2, 1)).sequence == 100

    def test_a_clock_that_went_back_leads_to_a_message_of_that_day_or_later(self):
        talk = hourly(100)
        Message.objects.filter(sequence__range=(50, 60)).update(created_at=timezone.now() - 10_000 * HOUR)

        for day in range(1, 5):
            date = datetime.date(2026, 1, day)
            assert on(talk, date).date >= date

    def test_without_time_zone_support_it_works_the_same(self, settings):
        settings.USE_TZ = False
        talk = long_conversation(3)
        for sequence in (1, 2, 3):
            Message.objects.filter(sequence=sequence).update(created_at=datetime.datetime(2026, 1, sequence, 12))  # noqa: DTZ001

        assert [on(talk, datetime.date(2026, 1, day)).sequence for day in (1, 2, 3)] == [1, 2, 3]

    @pytest.mark.parametrize("length", [100, 3000])
    def test_it_takes_one_statement_per_bisection_step(self, length, django_assert_max_num_queries):
        talk = long_conversation(length)

        with django_assert_max_num_queries(length.bit_length() + 2):
            on(talk, datetime.date(2026, 1, 2))

    def test_users_without_permission_to_read_can_jump(self, client):
        client.force_login(staff("view_conversation"))

        assert landed(client, hourly(100), "2026-01-02") == (25, "")


class TestPlaces:
    def hrefs(self, html: str) -> dict[str, str]:
        found = re.findall(r'<a class="cm-button" href="([^"]*)"[^>]*>([^<]+)', html)
        return {text: href for href, text in found}

    def test_links_lead_to_the_oldest_the_newest_and_the_start_of_the_memory(self, reader):
        talk = long_conversation(4 * PAGE)
        start = talk.window_start

        html = reader.get(page("change", talk.pk), {"before": 2 * PAGE}).content.decode()
        ways = self.hrefs(html)

        oldest = reader.get(page("change", talk.pk) + ways["First message"].partition("#")[0]).content.decode()
        assert oldest.index('id="first"') < oldest.index('id="m-1"') < oldest.index('id="m-2"')
        newest = reader.get(page("change", talk.pk) + ways["Newest message"].partition("#")[0]).content.decode()
        assert newest.index(f'id="m-{4 * PAGE - 1}"') < newest.index('id="newest"') < newest.index(f'id="m-{4 * PAGE}"')
        assert self.hrefs(oldest)["First message"] == "#first"
        assert self.hrefs(newest)["Newest message"] == "#newest"
        assert ways["Where the memory begins"].endswith("#memory")
        memory = reader.get(page("change", talk.pk) + ways["Where the memory begins"].partition("#")[0])
        html = memory.content.decode()
        assert html.index(f'id="m-{start - 1}"') < html.index('id="memory"') < html.index(f'id="m-{start}"')

    def test_a_memory_that_holds_everything_has_no_link_to_its_start(self, reader):
        html = reader.get(page("change", conversation(UserMessage("a")).pk)).content.decode()

        assert "Where the memory begins" not in html

    def test_a_message_links_to_its_neighbours_and_to_the_transcript(self, reader):
        talk = long_conversation(3 * PAGE)
        Message.objects.filter(sequence=PAGE + 1).delete()

        ways = self.hrefs(reader.get(page("message", talk.pk, PAGE)).content.decode())

        assert ways["Previous message"] == page("message", talk.pk, PAGE - 1)
        assert ways["Next message"] == page("message", talk.pk, PAGE + 2)
        place, _, anchor = ways["Show in conversation"].partition("#")
        assert f'id="{anchor}"' in reader.get(place).content.decode()

    def test_the_first_and_the_last_message_have_one_neighbour(self, reader):
        talk = conversation(UserMessage("a"), AiMessage("b"))

        first = self.hrefs(reader.get(page("message", talk.pk, 1)).content.decode())
        last = self.hrefs(reader.get(page("message", talk.pk, 2)).content.decode())

        assert ("Previous message" in first, "Next message" in first) == (False, True)
        assert ("Previous message" in last, "Next message" in last) == (True, False)
