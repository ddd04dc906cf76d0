"""The page of a conversation: its messages in pages, the gauge and the chart."""

import datetime
import re

import pytest
from django.utils import timezone

from chatmemory_django.admin.figures import GAUGE_MESSAGES, PLOT_MESSAGES, read_gauge, read_plot
from chatmemory_django.admin.transcript import LATER, PAGE, PAGE_BYTES
from chatmemory_django.memory import MessageWindowChatMemory
from chatmemory_django.messages import (
    AiMessage,
    CustomMessage,
    Image,
    ImageContent,
    SystemMessage,
    TextContent,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation, Message
from chatmemory_django.provider import MemoryConfiguration
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.faces.admin.admin_site import (
    EVERYTHING,
    MESSAGE_WINDOW,
    TOKEN_WINDOW,
    conversation,
    counted,
    long_conversation,
    page,
    shown,
    staff,
)

pytestmark = pytest.mark.django_db

S1, U1, A1, U2, U3 = (
    SystemMessage("Be brief"),
    UserMessage("one"),
    AiMessage("hello"),
    UserMessage("two"),
    UserMessage("three"),
)


@pytest.fixture
def reader(client):
    client.force_login(staff(*EVERYTHING))
    return client


def sequences(html: str) -> list[int]:
    return [int(number) for number in re.findall(r'id="m-(\d+)"', html)]


def bubble(html: str, sequence: int) -> str:
    """Return the header and the beginning of a message, up to the next one."""
    return html[html.index(f'id="m-{sequence}"') :].partition("<article")[0]


class TestTranscript:
    def test_each_message_has_its_sequence_time_type_and_tokens(self, reader):
        talk = counted(UserMessage("one two three", name="Klaus"), A1)
        moment = datetime.datetime(2026, 2, 3, 14, 5, tzinfo=datetime.UTC)
        Message.objects.update(created_at=moment)

        html = bubble(shown(reader, talk), 1)

        assert "#1<" in html
        assert '<time datetime="2026-02-03T14:05:00+00:00">' in html
        assert ">User<" in html
        assert ">Klaus<" in html
        assert "6 tokens" in html
        assert "one two three" in html

    def test_it_shows_until_when_the_conversation_is_kept(self, reader, settings):
        talk = conversation(U1)

        assert "ept until" not in shown(reader, talk)
        settings.CHATMEMORY = {**settings.CHATMEMORY, "RETENTION": {"IDLE": 400}}
        assert "<dt>Kept until</dt>" in shown(reader, talk)
        end = datetime.datetime(2030, 2, 3, 14, 5, tzinfo=datetime.UTC)
        Conversation.objects.update(expires_at=end, updated_at=end)
        html = shown(reader, talk)
        assert '<dt>Temporary, kept until</dt><dd><time datetime="2030-02-03T14:05:00+00:00">' in html

    def test_messages_in_memory_and_evicted_messages_look_different(self, reader):
        html = shown(reader, conversation(S1, U1, A1, U2, U3))

        badges = {each: re.findall(r"cm-badge[^>]*>([^<]+)", bubble(html, each)) for each in sequences(html)}
        assert badges == {
            1: ["in the memory, pinned"],
            2: ["evicted"],
            3: ["evicted"],
            4: ["in the memory"],
            5: ["in the memory"],
        }
        assert html.count("cm-sent") == 3
        assert html.count("cm-unsent") == 2

    def test_a_replaced_system_message_is_superseded(self, reader):
        html = shown(reader, conversation(S1, U1, SystemMessage("Be long")))

        assert ">superseded<" in bubble(html, 1)
        assert ">superseded<" not in bubble(html, 3)

    def test_a_line_marks_the_start_of_the_memory(self, reader):
        html = shown(reader, conversation(U1, A1, U2, U3))

        border = html.index("The memory begins here")
        assert html.index('id="m-1"') < border < html.index('id="m-2"')
        assert "The memory begins here" not in shown(reader, conversation(U1, memory_id="d"))

    def test_a_compaction_is_labelled(self, reader):
        talk = conversation(U1, A1, U2)
        memory = MessageWindowChatMemory(max_messages=3, id="c", store=DjangoChatMemoryStore())
        memory.set([SystemMessage("A summary"), U2])
        talk.refresh_from_db()

        html = shown(reader, talk)

        assert "not part of the history" in bubble(html, 4)
        assert "not part of the history" not in bubble(html, 3)
        assert sequences(html) == [1, 2, 3, 4, 5]

    def test_a_message_of_an_unfinished_turn_is_labelled(self, reader):
        talk = conversation(U1, A1)
        Message.objects.filter(sequence=1).update(is_complete=False)

        html = shown(reader, talk)

        assert "incomplete turn" in bubble(html, 1)
        assert "incomplete turn" not in bubble(html, 2)

    def test_all_fields_of_a_message_are_shown(self, reader):
        talk = conversation(
            AiMessage("an answer", "a thought", attributes={"key": "an attribute"}),
            CustomMessage({"kind": "a custom one"}),
            UserMessage([TextContent("first"), TextContent("second"), None]),
        )

        html = shown(reader, talk)

        for words in ("an answer", "a thought", "an attribute", "a custom one", "first", "second"):
            assert words in html

    def test_a_long_text_is_truncated_with_a_notice(self, reader):
        talk = conversation(UserMessage("x" * 3999 + "yz"), AiMessage("x" * 3999 + "yz", "a thought"), A1)

        html = shown(reader, talk)

        for sequence in (1, 2):
            assert "xy<" in bubble(html, sequence)
            assert "Truncated; the full text has 4,001 characters." in bubble(html, sequence)
        assert "Cut" not in bubble(html, 3)

    def test_an_empty_conversation_has_a_page(self, reader):
        html = shown(reader, Conversation.objects.create(memory_id="empty"))

        assert "There are no messages here." in html
        assert "The memory is empty." in html

    def test_metadata_of_a_message_is_shown_as_json(self, reader, django_assert_num_queries):
        talk = conversation(U1, A1)
        Message.objects.filter(sequence=2).update(metadata={"model": "<b>gpt</b>", "usage": {"in": 3}})

        with django_assert_num_queries(10 + 1):
            html = shown(reader, talk)

        assert "&quot;model&quot;: &quot;&lt;b&gt;gpt&lt;/b&gt;&quot;,\n" in bubble(html, 2)
        assert "Metadata" not in bubble(html, 1)

    def test_verbatim_data_of_another_framework_is_not_read(self, reader, django_assert_num_queries):
        talk = conversation(U1, A1)
        Message.objects.filter(sequence=2).update(verbatim="x" * PAGE_BYTES)

        with django_assert_num_queries(10) as captured:
            html = shown(reader, talk)

        assert "too large" not in html
        assert not any('"verbatim",' in query["sql"] for query in captured)

    def test_metadata_too_large_for_a_page_is_omitted_with_a_notice(self, reader):
        talk = conversation(U1)
        Message.objects.update(metadata={"key": "x" * PAGE_BYTES})

        html = bubble(shown(reader, talk), 1)

        assert "too large for this page" in html
        assert "one" in html
        assert len(html) < 4_000

    def test_long_metadata_is_truncated(self, reader):
        talk = conversation(U1)
        Message.objects.update(metadata={"key": "x" * 100_000})

        html = bubble(shown(reader, talk), 1)

        assert "Truncated; the full text has 100,011 characters." in html
        assert len(html) < 8_000

    def test_metadata_requires_permission_to_read(self, client):
        client.force_login(staff("view_conversation"))
        talk = conversation(U1)
        Message.objects.update(metadata={"quote": "secret"})
        Conversation.objects.update(metadata={"quote": "secret"})

        assert "secret" not in shown(client, talk)

    def test_the_head_links_to_unfinished_turns(self, reader):
        talk = long_conversation(100)
        assert "Incomplete turns" not in shown(reader, talk)
        Message.objects.filter(sequence__in=[7, 80]).update(is_complete=False)

        html = shown(reader, talk)

        head = html[html.index("Incomplete turns") :].partition("</dl>")[0]
        assert re.findall(r'href="\?after=(\d+)#m-(\d+)"', head) == [("54", "80"), ("0", "7")]
        assert "and more" not in head

    def test_the_head_links_to_a_limited_number_of_turns(self, reader):
        talk = long_conversation(100)
        Message.objects.filter(sequence__lte=20).update(is_complete=False)

        response = reader.get(page("change", talk.pk))

        html = response.content.decode()
        head = html[html.index("Incomplete turns") :].partition("</dl>")[0]
        assert len(response.context["unended"]) == 11
        assert head.count("<a ") == 10
        assert "and more" in head

    def test_metadata_of_the_conversation_is_shown(self, reader):
        talk = conversation(U1)
        Conversation.objects.update(metadata={"topic": "<b>tea</b>"})

        html = shown(reader, talk)

        assert "&lt;b&gt;tea&lt;/b&gt;" in html


class TestTools:
    CALLS = (
        ToolExecutionRequest(id="1", name="weather", arguments='{"city":"Bergen","days":[1,2]}'),
        ToolExecutionRequest(id="2", name="trains", arguments="no JSON at all"),
    )

    def test_results_are_shown_with_their_calls(self, reader):
        first, second = self.CALLS
        talk = conversation(
            AiMessage(tool_execution_requests=self.CALLS),
            ToolExecutionResultMessage.from_request(second, "no trains"),
            ToolExecutionResultMessage(first.id, first.name, "rain", is_error=True),
        )

        html = shown(reader, talk)

        assert html.index("weather") < html.index("rain") < html.index(">trains<") < html.index("no trains")
        assert sequences(html) == [1, 3, 2]
        assert "failed" in bubble(html, 3)
        assert "failed" not in bubble(html, 2)

    def test_json_arguments_are_indented_and_collapsed(self, reader):
        talk = conversation(AiMessage(tool_execution_requests=self.CALLS))

        html = shown(reader, talk)

        assert "{\n  &quot;city&quot;: &quot;Bergen&quot;," in html
        assert "no JSON at all" in html
        assert html.count('<details class="cm-fold"><summary>Arguments') == 2
        assert html.count("No result is stored for this call.") == 2

    def test_a_result_on_a_newer_page_is_a_link(self, reader, django_assert_num_queries):
        talk = self.talk_with_results_behind(PAGE, before=PAGE)

        # The calls of the page as a whole, the messages after it, and whether any call waits for somebody.
        with django_assert_num_queries(7 + 3):
            html = shown(reader, talk, after=0)

        result = page("message", talk.pk, PAGE + 2)
        assert f'<a href="{result}">Its result is #{PAGE + 2}, on a newer page</a>' in html
        assert "Its result, if any, is not on this page." not in html
        assert html.count("No result is stored for this call.") == 1  # of the other call

    def test_a_result_that_is_too_far_away_is_omitted(self, reader):
        talk = self.talk_with_results_behind(PAGE, before=PAGE + LATER)

        html = shown(reader, talk, after=0)

        assert html.count("Its result, if any, is not on this page.") == 2
        assert "No result is stored for this call." not in html

    def test_a_result_too_large_for_a_page_is_omitted(self, reader, monkeypatch):
        monkeypatch.setattr("chatmemory_django.admin.transcript.PAGE_BYTES", 500)
        first = self.CALLS[0]
        talk = conversation(
            ToolExecutionResultMessage("0", "t", "x" * 600),
            AiMessage(tool_execution_requests=[first]),
            ToolExecutionResultMessage.from_request(first, "x" * 600),
        )
        Message.objects.filter(sequence=3).update(text="short")

        html = shown(reader, talk)

        assert "This message is too large for this page" in bubble(html, 3)
        assert "Its result, if any, is not on this page." in html
        assert "No result is stored for this call." not in html

    def test_a_result_belongs_to_the_latest_call_with_its_id(self, reader):
        first = self.CALLS[0]
        ask = AiMessage(tool_execution_requests=[first])
        talk = conversation(*[U1] * (PAGE - 1), ask, ask, ToolExecutionResultMessage.from_request(first, "rain"))

        html = shown(reader, talk, after=0)

        assert "No result is stored for this call." in bubble(html, PAGE)

    def test_clearing_the_memory_in_between_keeps_call_and_result_together(self, reader):
        first = self.CALLS[0]
        memory = MessageWindowChatMemory(max_messages=9, id="c", store=DjangoChatMemoryStore())
        memory.add(U1, AiMessage(tool_execution_requests=[first]))
        memory.clear()
        memory.add(ToolExecutionResultMessage.from_request(first, "rain"), U2)

        html = shown(reader, Conversation.objects.get())

        assert html.index(">weather<") < html.index("rain")
        assert "No result" not in html
        # The memory begins with the result that is shown within the call, so the line follows it.
        assert html.index('id="m-3"') < html.index("The memory begins here") < html.index('id="m-4"')

    def test_the_page_of_a_message_does_not_mention_results(self, reader):
        talk = conversation(AiMessage(tool_execution_requests=self.CALLS))

        html = reader.get(page("message", talk.pk, 1)).content.decode()

        assert "esult" not in bubble(html, 1).partition("<h2>")[0]

    def talk_with_results_behind(self, place: int, *, before: int) -> Conversation:
        """Create a conversation with calls at *place*, and the results of the first two after *before* messages."""
        first = self.CALLS[0]
        messages = [U1] * (place - 1) + [AiMessage(tool_execution_requests=self.CALLS)]
        messages += [U1] * (before - place + 1) + [ToolExecutionResultMessage.from_request(first, "rain"), U1]
        return conversation(*messages)

    def test_a_result_without_its_call_on_the_page_is_shown_separately(self, reader):
        talk = conversation(ToolExecutionResultMessage("1", "weather", "rain"), U1)

        assert sequences(shown(reader, talk)) == [1, 2]


class TestPages:
    def test_the_newest_page_comes_first_and_links_to_all_others(self, reader):
        talk = long_conversation(2 * PAGE + 7)

        html, seen = shown(reader, talk), []
        while True:
            seen = sequences(html) + seen
            older = re.search(r'href="(\?before=\d+)" rel="prev"', html)
            if older is None:
                break
            html = reader.get(page("change", talk.pk) + older[1]).content.decode()

        assert seen == list(range(1, 2 * PAGE + 8))
        assert 'rel="next"' in html

    def test_an_older_page_links_to_newer_ones(self, reader):
        talk = long_conversation(2 * PAGE + 7)

        html = shown(reader, talk, after=0)
        assert sequences(html)[:1] == [1]
        assert 'rel="prev"' not in html
        html = shown(reader, talk, after=PAGE)
        assert sequences(html) == list(range(PAGE + 1, 2 * PAGE + 1))
        html = shown(reader, talk, after=2 * PAGE)
        assert sequences(html) == list(range(2 * PAGE + 1, 2 * PAGE + 8))
        assert 'rel="next"' not in html
        assert "Newest message<" in html

    def test_the_figures_appear_only_on_the_newest_page(self, reader):
        talk = long_conversation(PAGE + 1)

        assert "cm-gauge" in shown(reader, talk)
        assert "cm-gauge" not in shown(reader, talk, before=PAGE)

    @pytest.mark.parametrize("place", ["x", "-1", "", "1" * 30, "²", "1.5"])
    def test_an_invalid_position_shows_the_newest_page(self, reader, place):
        talk = long_conversation(PAGE + 5)

        assert sequences(shown(reader, talk, before=place))[-1] == PAGE + 5

    def test_a_position_after_all_messages_shows_none(self, reader):
        talk = long_conversation(3)

        assert "There are no messages here." in shown(reader, talk, after=999_999_999)

    @pytest.mark.parametrize("length", [20, 60, 3000])
    def test_a_page_takes_10_statements_at_any_length(self, reader, length, django_assert_num_queries):
        talk = long_conversation(length)

        # The session, the user, two for permissions; the conversation, whether it has branches, the page, the gauge,
        # the chart, the unfinished turns.
        with django_assert_num_queries(10):
            reader.get(page("change", talk.pk))
        with django_assert_num_queries(7):
            reader.get(page("change", talk.pk), {"before": 15})

    def test_tools_and_files_take_one_more_statement(self, reader, django_assert_num_queries):
        call = ToolExecutionRequest(id="1", name="t", arguments="{}")
        messages = [AiMessage(tool_execution_requests=[call]), ToolExecutionResultMessage.from_request(call, "x")] * 10
        talk = conversation(*messages, owner=staff(name="ann"))

        # And the owner.
        with django_assert_num_queries(12):
            reader.get(page("change", talk.pk))

    def test_long_texts_take_one_more_statement(self, reader, django_assert_num_queries):
        talk = conversation(*[UserMessage("word " * 1000)] * 10)

        with django_assert_num_queries(11):
            reader.get(page("change", talk.pk))

    def test_the_amount_of_text_read_for_a_page_is_limited(self, reader, monkeypatch):
        monkeypatch.setattr("chatmemory_django.admin.transcript.PAGE_BYTES", 2000)
        talk = conversation(*(AiMessage(f"text {number}", thinking="t" * 800) for number in range(4)))

        html = shown(reader, talk)

        assert html.count("This message is too large for this page") == 2
        assert "too large" in bubble(html, 1)
        assert "text 0" in bubble(html, 1)
        assert "too large" not in bubble(html, 4)


class TestMessagePage:
    def test_the_page_of_a_message_shows_its_json_and_metadata(self, reader):
        talk = conversation(UserMessage("Hi", name="Klaus"))
        Message.objects.update(metadata={"model": "gpt-4o"})

        html = reader.get(page("message", talk.pk, 1)).content.decode()

        assert "&quot;name&quot;: &quot;Klaus&quot;" in html
        assert "&quot;model&quot;: &quot;gpt-4o&quot;" in html
        assert 'href="/admin/chatmemory/conversation/' in html

    def test_the_page_of_a_message_shows_verbatim_data_of_another_framework(self, reader):
        talk = conversation(U1)
        Message.objects.update(verbatim='{"openai":{"content":"<one>","phase":null}}')

        html = reader.get(page("message", talk.pk, 1)).content.decode()

        assert "Original from another framework" in html
        assert "&quot;content&quot;: &quot;&lt;one&gt;&quot;,\n" in html

    def test_the_json_is_an_attachment_that_browsers_do_not_render(self, reader):
        talk = conversation(UserMessage("<script>alert(1)</script>"))

        response = reader.get(page("json", talk.pk, 1))

        assert response.content.decode() == (
            '{"type":"USER","contents":[{"type":"TEXT","text":"<script>alert(1)</script>"}]}'
        )
        assert response["Content-Type"] == "application/json"
        assert response["Content-Disposition"] == f'attachment; filename="message-{talk.pk}-1.json"'
        assert response["X-Content-Type-Options"] == "nosniff"


class TestGauge:
    def gauge(self, talk, settings, chatmemory):
        settings.CHATMEMORY = chatmemory
        return read_gauge(Conversation.objects.get(pk=talk.pk), MemoryConfiguration.of(talk.memory_id).window())

    def test_it_stacks_the_tokens_of_each_message_against_the_limit(self, settings):
        talk = counted(SystemMessage("word " * 97), UserMessage("word " * 147))  # 100 and 150 of 1,000

        gauge = self.gauge(talk, settings, TOKEN_WINDOW)

        assert (gauge.total, gauge.limit, gauge.percent, gauge.counts_tokens) == (250, 1000, 25, True)
        assert [(each.x, each.width, each.style, each.sequence) for each in gauge.segments] == [
            ("0.00", "100.00", "system", 1),
            ("100.00", "150.00", "user", 2),
        ]
        assert [(share.style, share.messages, share.cost) for share in gauge.shares] == [
            ("system", 1, 100),
            ("user", 1, 150),
        ]

    def test_pinned_messages_come_first(self, settings):
        talk = conversation(S1, U1, A1, U2, U3)

        gauge = self.gauge(talk, settings, MESSAGE_WINDOW)

        assert [each.sequence for each in gauge.segments] == [1, 4, 5]
        assert (gauge.total, gauge.limit, gauge.counts_tokens) == (3, 40, False)

    def test_a_memory_above_a_lowered_limit_is_marked(self, settings):
        talk = counted(UserMessage("word " * 1997), max_tokens=4000)

        gauge = self.gauge(talk, settings, TOKEN_WINDOW)

        assert (gauge.total, gauge.limit_x, gauge.segments[0].width) == (2000, "500.00", "1000.00")

    def test_counts_of_another_estimator_are_not_compared(self, settings):
        talk = counted(U1, A1)
        Conversation.objects.update(counted_by="other")

        gauge = self.gauge(talk, settings, TOKEN_WINDOW)

        assert (gauge.total, gauge.limit, gauge.is_uncounted) == (8, None, True)

    def test_an_uncounted_memory_is_shown_in_messages_with_a_notice(self, reader, settings):
        talk = conversation(U1, A1)
        settings.CHATMEMORY = TOKEN_WINDOW

        html = shown(reader, talk)

        assert "2 messages" in html
        assert "these messages were not counted" in html

    def test_invalid_settings_omit_the_limit(self, reader, settings):
        talk = counted(U1)
        settings.CHATMEMORY = {"MEMORY": {"CLASS": "nowhere.Memory"}}

        assert "4 tokens" in shown(reader, talk)

    def test_a_very_large_memory_shows_only_the_newest_messages_separately(self, settings):
        talk = long_conversation(GAUGE_MESSAGES + 100)
        Conversation.objects.update(window_start=1, memory_messages=GAUGE_MESSAGES + 100, memory_tokens=5 * 400)

        gauge = self.gauge(talk, settings, TOKEN_WINDOW)

        assert len(gauge.segments) == GAUGE_MESSAGES + 1
        assert (gauge.segments[0].style, gauge.segments[0].cost) == ("rest", 500)
        assert sum(share.cost for share in gauge.shares) == 2000

    def test_localized_numbers_do_not_break_the_gauge(self, reader, settings):
        settings.CHATMEMORY = TOKEN_WINDOW
        settings.LANGUAGE_CODE = "de"
        settings.USE_THOUSAND_SEPARATOR = True
        talk = counted(UserMessage("word " * 120), UserMessage("word " * 12))

        html = shown(reader, talk)

        assert re.findall(r'x="([^"]+)" width="([^"]+)" height="40"', html) == [
            ("0.00", "123.00"),
            ("123.00", "15.00"),
        ]


class TestChart:
    def spread(self, talk, seconds: int) -> Conversation:
        begin = timezone.now()
        for row in talk.messages.all():
            moment = begin + datetime.timedelta(seconds=seconds * row.sequence)
            talk.messages.filter(sequence=row.sequence).update(created_at=moment)
        return talk

    def test_it_shows_messages_and_tokens_over_time(self):
        talk = self.spread(counted(UserMessage("one"), UserMessage("one two three four five"), U2), 60)

        plot = read_plot(talk)

        assert (plot.messages, plot.tokens, plot.step) == (3, 4 + 8 + 4, 1)
        assert plot.end - plot.begin == datetime.timedelta(seconds=120)
        assert plot.message_points == "0.00,80.00 300.00,40.00 600.00,0.00"
        assert plot.token_points == "0.00,90.00 300.00,30.00 600.00,0.00"

    def test_a_clock_that_went_back_draws_no_line_outside_the_chart(self):
        talk = self.spread(counted(U1, A1, U2), 60)
        talk.messages.filter(sequence=2).update(created_at=timezone.now() - datetime.timedelta(days=3))

        points = [point.split(",") for point in read_plot(talk).message_points.split()]

        assert all(0 <= float(x) <= 600 and 0 <= float(y) <= 120 for x, y in points)

    def test_long_conversations_are_sampled_and_their_tokens_estimated(self, reader):
        talk = self.spread(long_conversation(2 * PLOT_MESSAGES), 1)

        plot = read_plot(talk)

        assert plot.step == 2
        assert len(plot.message_points.split()) <= PLOT_MESSAGES + 1
        assert plot.messages == 2 * PLOT_MESSAGES
        assert abs(plot.tokens - 10 * PLOT_MESSAGES) <= 10
        assert "estimated from 1 in 2 messages" in shown(reader, talk)

    def test_messages_at_a_single_moment_have_no_chart(self, reader):
        talk = conversation(U1)

        assert read_plot(talk) is None
        assert "cm-plot" not in shown(reader, talk)
        assert read_plot(Conversation.objects.create(memory_id="empty")) is None

    def test_uncounted_messages_have_no_token_line(self):
        plot = read_plot(self.spread(conversation(U1, A1), 60))

        assert (plot.token_points, plot.tokens) == ("", 0)


def test_an_image_next_to_text_appears_in_the_transcript(reader):
    talk = conversation(UserMessage([TextContent("Look"), ImageContent(Image(url="https://example.com/a.png"))]))

    html = shown(reader, talk)

    assert "Look" in html
    assert 'href="https://example.com/a.png"' in html
