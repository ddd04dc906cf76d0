"""What the admin leaves to the database: filters, order and dates of the list, and cursors."""

import datetime

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone

from chatmemory_django import operations
from chatmemory_django.admin import ConversationAdmin, changelist, filters
from chatmemory_django.db.moments import to_moment
from chatmemory_django.messages import AiMessage, ToolExecutionResultMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.models.conversations import PREVIEW
from tests.faces.admin.admin_site import EVERYTHING, conversation, counted, page, post_action, staff
from tests.faces.admin.test_admin_list import found

pytestmark = pytest.mark.django_db

U1, A1, U2, U3 = UserMessage("Where is it?"), AiMessage("In Hamburg"), UserMessage("Thanks"), UserMessage("Bye")


@pytest.fixture
def reader(client):
    client.force_login(staff("view_conversation", "view_message_text"))
    return client


def rows(client, **query):
    return client.get(page("changelist"), query).context["cl"].result_list


class TestFilters:
    def test_filter_by_owner(self, reader):
        conversation(U1, memory_id="a", owner=User.objects.create_user("ann"))
        conversation(U1, memory_id="b", owner=User.objects.create_user("bob"))
        conversation(U1, memory_id="nobodys")

        assert found(reader, owner="ann") == ["a"]
        assert found(reader, owner="/") == ["nobodys"]
        assert found(reader, owner="") == ["a", "b", "nobodys"]
        assert found(reader, owner="an") == []
        assert found(reader, owner="a\0") == []

    def test_the_owner_form_keeps_other_parameters(self, reader):
        html = reader.get(page("changelist"), {"q": "x", "active": "7", "owner": "<ann>", "p": "1"}).content.decode()

        form = html[html.index('class="cm-typed"') :].partition("</form>")[0]
        assert '<input type="hidden" name="q" value="x">' in form
        assert '<input type="hidden" name="active" value="7">' in form
        assert 'value="&lt;ann&gt;"' in form
        assert 'name="p"' not in form

    def test_filter_by_activity(self, reader):
        for memory_id, days in {"new": 0, "week": 6, "month": 29, "old": 400}.items():
            conversation(U1, memory_id=memory_id)
            moment = timezone.now() - datetime.timedelta(days=days)
            Conversation.objects.filter(memory_id=memory_id).update(updated_at=moment)

        assert found(reader, active="1") == ["new"]
        assert found(reader, active="7") == ["new", "week"]
        assert found(reader, active="30") == ["month", "new", "week"]
        assert found(reader, active="365") == ["month", "new", "week"]
        assert found(reader, active="nonsense") == ["month", "new", "old", "week"]

    def test_filter_by_evictions(self, reader):
        conversation(U1, A1, U2, U3, memory_id="evicted")
        conversation(U1, memory_id="whole")

        assert found(reader, evictions="yes") == ["evicted"]
        assert found(reader, evictions="no") == ["whole"]
        assert found(reader, evictions="?") == ["evicted", "whole"]

    def test_filter_by_memory(self, reader):
        conversation(U1, memory_id="used")
        conversation(U1, memory_id="cleared")
        Conversation.objects.create(memory_id="unused")
        operations.clear(Conversation.objects.filter(memory_id="cleared"))

        assert found(reader, memory="used") == ["used"]
        assert found(reader, memory="empty") == ["cleared", "unused"]
        assert found(reader, memory="unused") == ["unused"]
        assert found(reader, memory="?") == ["cleared", "unused", "used"]

    def test_filter_by_problem(self, reader):
        failed = ToolExecutionResultMessage("1", "tool", "no", is_error=True)
        conversation(U1, memory_id="fine")
        conversation(U1, failed, memory_id="failed")
        conversation(U1, memory_id="broken off")
        Message.objects.filter(conversation__memory_id="broken off").update(is_complete=False)

        assert found(reader, problem="turn") == ["broken off"]
        assert found(reader, problem="tool") == ["failed"]
        assert found(reader, problem="?") == ["broken off", "failed", "fine"]

    @pytest.mark.parametrize("problem", ["turn", "tool"])
    def test_the_problem_filter_reads_messages_once(self, reader, problem, django_assert_num_queries):
        conversation(U1, ToolExecutionResultMessage("1", "tool", "no", is_error=True), title="Failed")
        Message.objects.update(is_complete=False)

        with django_assert_num_queries(7) as captured:  # without owners
            reader.get(page("changelist"), {"problem": problem})

        assert len([query for query in captured if "chatmemory_message" in query["sql"]]) == 1

    def test_too_many_problems_show_the_newest_with_a_notice(self, reader, monkeypatch):
        monkeypatch.setattr(filters, "MAX_FOUND", 2)
        for memory_id in ("first", "second", "third"):
            conversation(U1, memory_id=memory_id)
        Message.objects.update(is_complete=False)

        response = reader.get(page("changelist"), {"problem": "turn"})

        assert [each.memory_id for each in response.context["cl"].result_list] == ["third", "second"]
        assert "More than 2 conversations match" in response.content.decode()

    def test_filtering_by_problem_requires_no_permission_to_read(self, client):
        client.force_login(staff("view_conversation"))
        conversation(ToolExecutionResultMessage("1", "tool", "no", is_error=True))

        assert found(client, problem="tool") == ["c"]

    def test_filter_by_flag(self, reader):
        for memory_id in ("plain", "pinned", "archived"):
            conversation(U1, memory_id=memory_id)
        Conversation.objects.filter(memory_id="pinned").update(is_pinned=True)
        Conversation.objects.filter(memory_id="archived").update(is_archived=True)

        assert found(reader, flag="pinned") == ["pinned"]
        assert found(reader, flag="archived") == ["archived"]
        assert found(reader, flag="unarchived") == ["pinned", "plain"]
        assert found(reader, flag="?") == ["archived", "pinned", "plain"]

    def test_filter_by_assistant(self, reader, settings):
        for memory_id, name in (("plain", ""), ("one", "support"), ("other", "sales")):
            conversation(U1, memory_id=memory_id)
            Conversation.objects.filter(memory_id=memory_id).update(assistant=name)
        assert found(reader, assistant="support") == ["one", "other", "plain"]  # the site has none by name
        settings.CHATMEMORY = {"CHAT": {"ASSISTANTS": {"support": "of.support", "sales": "of.sales"}}}

        assert found(reader, assistant="support") == ["one"]
        assert found(reader, assistant="/") == ["plain"]
        assert found(reader, assistant="") == ["one", "other", "plain"]

    def test_a_conversation_without_a_title_is_named_by_the_beginning_of_its_last_message(self, reader):
        conversation(U1, AiMessage("x" * 1000), ToolExecutionResultMessage("1", "tool", "ok"), memory_id="a")
        conversation(U1, memory_id="b", title="Parcels")
        Conversation.objects.create(memory_id="c")

        listed = {each.memory_id: each.listed.preview for each in rows(reader)}

        assert listed == {"a": "x" * PREVIEW, "b": "", "c": ""}
        html = reader.get(page("changelist")).content.decode()
        assert f'<bdi class="cm-title cm-untitled" title="{"x" * PREVIEW}">' in html

    def test_only_who_may_read_messages_sees_how_they_begin(self, client):
        client.force_login(staff("view_conversation"))
        conversation(U1, memory_id="a")

        html = client.get(page("changelist")).content.decode()

        assert "Where is it?" not in html
        assert 'class="field-memory_id"><a href=' in html.replace("<th ", "<td ")

    def test_a_search_shows_the_newest_message_that_it_found(self, reader):
        conversation(U1, A1, UserMessage("<b>Where</b> is it?" + " and" * 200), U2, memory_id="a", title="Parcels")
        conversation(U3, memory_id="b", title="where is it")

        listed = {each.memory_id: each.listed.hit for each in rows(reader, q="where")}

        assert str(listed["a"]).startswith("<b>Where</b> is it? and")
        assert listed["b"] is None
        html = reader.get(page("changelist"), {"q": "where"}).content.decode()
        assert "&lt;b&gt;<mark>Where</mark>&lt;/b&gt; is it?" in html
        assert "<mark>where</mark> is it</bdi>" in html

    @pytest.mark.parametrize("column", range(1, 6))
    def test_the_list_can_be_sorted_by_every_column(self, reader, column):
        conversation(U1, A1, memory_id="a", title="2")
        counted(U1, memory_id="b", title="1")

        forwards = [each.pk for each in reader.get(page("changelist"), {"o": column}).context["cl"].result_list]
        backwards = [each.pk for each in reader.get(page("changelist"), {"o": -column}).context["cl"].result_list]

        assert len(forwards) == len(backwards) == 2


class TestUntil:
    """The filter by the day of the last activity, which ends in the active time zone."""

    @pytest.fixture(autouse=True)
    def conversations(self):
        for memory_id, month in (("june", 6), ("july", 7)):
            conversation(U1, memory_id=memory_id)
            moment = to_moment(datetime.datetime(2026, month, 21, 12, tzinfo=datetime.UTC))
            Conversation.objects.filter(memory_id=memory_id).update(updated_at=moment)

    @pytest.mark.parametrize("zone", ["UTC", "Antarctica/Vostok"])
    @pytest.mark.parametrize("use_tz", [True, False])
    @pytest.mark.parametrize(
        ("day", "ids"),
        [("2026-07-21", ["july", "june"]), ("2026-07-20", ["june"]), ("2026-06-20", []), ("", ["july", "june"])],
    )
    def test_a_day_narrows_the_list(self, reader, settings, use_tz, zone, day, ids):
        settings.USE_TZ, settings.TIME_ZONE = use_tz, zone

        assert found(reader, until=day) == ids

    def test_the_day_ends_in_the_active_time_zone(self, reader, settings):
        settings.TIME_ZONE = "Pacific/Kiritimati"  # where it is already the 22nd

        assert found(reader, until="2026-06-21") == []
        assert found(reader, until="2026-06-22") == ["june"]

    def test_the_form_shows_the_day(self, reader):
        html = reader.get(page("changelist"), {"until": "2026-07-01", "flag": "unarchived"}).content.decode()

        assert '<input type="date" name="until" value="2026-07-01"' in html
        assert '<input type="hidden" name="flag" value="unarchived">' in html


class TestLargeList:
    """What the list does if more conversations match than it has: here, more than three."""

    @pytest.fixture(autouse=True)
    def conversations(self, monkeypatch):
        monkeypatch.setattr(changelist, "MAX_LISTED", 3)
        monkeypatch.setattr(ConversationAdmin, "list_per_page", 2)
        for number in range(5):  # the newest one is first by its memory id, and last by its title
            row = conversation(U1, memory_id=f"{5 - number}", title=f"{number}")
            moment = to_moment(datetime.datetime(2026, 7, 21, 12, 10 * number, tzinfo=datetime.UTC))
            Conversation.objects.filter(pk=row.pk).update(updated_at=moment)

    @pytest.mark.parametrize(
        ("query", "ids"),
        [
            ({}, ["1", "2"]),
            ({"p": 2}, ["3"]),
            ({"o": "4"}, ["1", "2"]),
            ({"o": "-4"}, ["3", "2"]),
            ({"o": "4", "p": 2}, ["3"]),
            ({"o": "0"}, ["3", "2"]),
            ({"o": "3"}, ["3", "2"]),
            ({"o": "-3"}, ["1", "2"]),
            ({"until": "2026-07-21"}, ["1", "2"]),
        ],
    )
    def test_it_has_the_newest_in_any_order(self, reader, query, ids):
        response = reader.get(page("changelist"), query)

        assert [each.memory_id for each in response.context["cl"].result_list] == ids
        assert response.context["cl"].result_count == 3
        assert "More than 3 conversations match" in response.content.decode()

    def test_all_of_fewer_are_listed_without_a_notice(self, reader):
        Conversation.objects.filter(memory_id__in=("4", "5")).delete()

        html = reader.get(page("changelist")).content.decode()

        assert "More than" not in html

    def test_an_action_on_all_is_on_the_listed_ones(self, client):
        client.force_login(staff(*EVERYTHING))
        first = Conversation.objects.get(memory_id="1")
        data = {"action": "delete_selected", "select_across": "1", "_selected_action": [first.pk]}

        client.post(page("changelist"), {**data, "confirmed": "delete"})

        assert sorted(Conversation.objects.values_list("memory_id", flat=True)) == ["4", "5"]

    def test_an_action_on_selected_ones_is_on_these(self, client):
        client.force_login(staff(*EVERYTHING))
        oldest = Conversation.objects.get(memory_id="5")
        data = {"action": "delete_selected", "select_across": "0", "_selected_action": [oldest.pk]}

        client.post(page("changelist"), {**data, "confirmed": "delete"})

        assert sorted(Conversation.objects.values_list("memory_id", flat=True)) == ["1", "2", "3", "4"]


@pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL has server-side cursors")
def test_no_server_side_cursor_is_opened_so_poolers_work(client):
    client.force_login(staff(*EVERYTHING))
    talk = conversation(U1, A1, U2, U3)
    opened = []

    def look(execute, sql, params, many, context):
        result = execute(sql, params, many, context)
        with connection.connection.cursor() as cursor:
            # An unnamed cursor is this SELECT itself: with server-side binding, PostgreSQL lists that as well.
            opened.extend(cursor.execute("SELECT name FROM pg_cursors WHERE name <> ''").fetchall())
        return result

    with connection.execute_wrapper(look):
        response = post_action(client, "export_conversations", [talk], confirmed="export")
        assert len(list(response.streaming_content)) > 0

    assert opened == []
