"""The days that a model is shown: a line where one begins, the same in each request, and counted."""

from datetime import UTC, date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone as site_timezone

from chatmemory_django.chat.answers.sent import day_line, to_send
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.core.windows import Window, to_entry
from chatmemory_django.db.moments import aware, to_moment
from chatmemory_django.memory import TokenWindowChatMemory
from chatmemory_django.messages import AiMessage, SystemMessage, TextContent, UserMessage
from chatmemory_django.models import Message
from chatmemory_django.stores.in_process import InMemoryChatMemoryStore
from tests.asgi import run
from tests.estimators import ADDITIVE_WORDS, WORDS
from tests.faces.chat.scripted import ScriptedModel, calling

A = AiMessage("good day")
FIRST = date(2026, 11, 27)


def lines_of(messages) -> list[str | None]:
    """Return the line in front of each message of a user, or None."""
    fronts = [each.contents[0].text for each in messages if isinstance(each, UserMessage)]
    return [text if text.startswith("[") else None for text in fronts]


def test_a_line_is_the_day_and_its_name():
    assert day_line(FIRST) == "[2026-11-27, Friday]"
    assert day_line(date(2026, 1, 5)) == "[2026-01-05, Monday]"


def today() -> date:
    return aware(site_timezone.now()).astimezone(site_timezone.get_default_timezone()).date()


def send(days, window, **options):
    """Return what is sent of a system message and a question with an answer for each of *days*, the last unanswered."""
    memory = [SystemMessage("be brief"), *(each for day in days for each in (UserMessage(f"asked on {day}"), A))][:-1]
    entries = [to_entry(key, message) for key, message in enumerate(memory)]
    found = {2 * place + 1: FIRST + timedelta(days=day) for place, day in enumerate(days)}
    return to_send(entries, len(memory) - 1, window, day_of=found.__getitem__, **options).messages


class TestSent:
    def test_it_is_in_front_of_the_first_message_of_each_day_and_of_no_other(self):
        sent = send([0, 0, 3, 3, 4], Window(100))

        assert lines_of(sent) == ["[2026-11-27, Friday]", None, "[2026-11-30, Monday]", None, "[2026-12-01, Tuesday]"]
        assert sent[1] == UserMessage([TextContent("[2026-11-27, Friday]"), TextContent("asked on 0")])
        assert sent[2] == A

    def test_it_is_in_front_of_the_context_of_the_question(self):
        asked = send([0, 1], Window(100), context="It rains.")[-1]

        assert [each.text for each in asked.contents] == ["[2026-11-28, Saturday]", "It rains.", "asked on 1"]

    @pytest.mark.parametrize("estimator", [ADDITIVE_WORDS, WORDS])
    @pytest.mark.parametrize("limit", range(30, 90, 7))
    def test_it_counts_and_the_first_message_that_is_left_has_one(self, estimator, limit):
        sent = send([0] * 6 + [1], Window(limit, estimator))

        assert estimator.estimate_token_count_in_messages(sent) <= limit
        lines = lines_of(sent)
        assert lines[0] == ("[2026-11-27, Friday]" if len(lines) > 1 else "[2026-11-28, Saturday]")
        assert lines[1:-1] == [None] * len(lines[1:-1])

    def test_what_stays_is_sent_unchanged_as_messages_leave(self):
        days = [0, 0, 0, 1, 1, 2, 2, 2, 3]
        whole = send(days, Window(100))

        for limit in range(3, 18):
            sent = send(days, Window(limit))
            first = next(place for place, each in enumerate(sent) if isinstance(each, UserMessage))
            behind = sent[first + 1 :]
            assert behind == whole[len(whole) - len(behind) :]


@pytest.mark.django_db(transaction=True)
class TestAssistants:
    def written_on(self, *moments: datetime) -> None:
        """Let the messages of users have been written then, the oldest first."""
        rows = Message.objects.filter(type="USER").order_by("sequence")
        for row, moment in zip(rows, moments, strict=False):
            Message.objects.filter(pk=row.pk).update(created_at=to_moment(moment))

    def test_earlier_days_and_today_are_shown_and_nothing_of_it_is_stored(self):
        model = ScriptedModel("Yes.")
        bot = Assistant(model, dates=True)
        for _ in range(2):
            bot.chat("c", "Hello?")
        self.written_on(datetime(2026, 3, 1, 12, tzinfo=UTC), datetime(2026, 3, 1, 13, tzinfo=UTC))

        bot.chat("c", "Hello?")

        assert lines_of(model.sent[-1]) == ["[2026-03-01, Sunday]", None, day_line(today())]
        assert {row.chat_message for row in Message.objects.filter(type="USER")} == {UserMessage("Hello?")}

    def test_days_begin_where_the_site_or_the_assistant_is(self):
        late = datetime(2026, 3, 1, 23, 30, tzinfo=UTC)
        for dates, line in (
            (UTC, "[2026-03-01, Sunday]"),
            (ZoneInfo("Asia/Tokyo"), "[2026-03-02, Monday]"),
            (timezone(timedelta(hours=-12)), "[2026-03-01, Sunday]"),
        ):
            model = ScriptedModel("Yes.")
            memory_id = f"c {dates}"
            Assistant(model).chat(memory_id, "Hello?")
            rows = Message.objects.filter(conversation__memory_id=memory_id, type="USER")
            rows.update(created_at=to_moment(late))
            Assistant(model, dates=dates).chat(memory_id, "Hello?")
            assert lines_of(model.sent[-1])[0] == line

    def test_what_was_sent_is_sent_again_unchanged(self):
        model = ScriptedModel("word " * 20)
        options = {"max_tokens": 300, "evict_to": 150, "token_count_estimator": ADDITIVE_WORDS}
        bot = Assistant(model, memory=TokenWindowChatMemory, memory_options=options, dates=UTC)
        begin = aware(site_timezone.now()) - timedelta(days=30)
        moments = [begin + timedelta(hours=15 * hours) for hours in range(20)]
        kept = 0
        for count in range(20):
            bot.chat("c", "Hello?")
            before, now = model.sent[-2] if count else [], model.sent[-1]
            kept += now[: len(before) - 1] == before[:-1]  # the last one was asked then, and not when it was written
            self.written_on(*moments[: count + 1])

        assert kept >= 16

    def test_they_are_shown_again_in_each_round_and_in_event_loops(self):
        def look() -> str:
            """Look."""
            return "nothing"

        model = ScriptedModel(calling(("1", "look", "{}")), "Yes.")
        run(Assistant(model, tools=[look], dates=True).achat("c", "Hello?"))

        first, second = model.sent
        assert first[0] == second[0]
        assert lines_of(first) == [day_line(today())]

    def test_it_takes_one_statement_and_without_the_option_none(self):
        counts = []
        for dates in (False, True):
            bot = Assistant(ScriptedModel("Yes."), dates=dates)
            bot.chat(f"c {dates}", "Hello?")
            bot.chat(f"c {dates}", "Hello?")
            with CaptureQueriesContext(connection) as queries:
                bot.chat(f"c {dates}", "Hello?")
            counts.append(len(queries))

        assert counts[1] == counts[0] + 1


class TestMistakes:
    @pytest.mark.parametrize("dates", ["Europe/Berlin", None, 1])
    def test_what_is_no_time_zone(self, dates):
        with pytest.raises(TypeError, match="dates must be True, False or a time zone"):
            Assistant(ScriptedModel("Yes."), dates=dates)

    def test_a_store_that_knows_no_dates(self):
        store = InMemoryChatMemoryStore()
        options = {"max_tokens": 100, "token_count_estimator": ADDITIVE_WORDS, "store": store}
        bot = Assistant(ScriptedModel("Yes."), memory=TokenWindowChatMemory, memory_options=options, dates=True)

        with pytest.raises(TypeError, match="dates are those of DjangoChatMemoryStore only"):
            bot.chat("c", "Hello?")
