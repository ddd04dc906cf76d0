"""What the admin leaves to the database: filters, order and dates of the list, and cursors."""

import datetime

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone

from chatmemory_django import operations
from chatmemory_django.admin import changelist, filters
from chatmemory_django.db.moments import knows_time_zone, to_moment
from chatmemory_django.messages import AiMessage, ToolExecutionResultMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from tests.faces.admin.admin_site import EVERYTHING, conversation, counted, page, post_action, staff
from tests.faces.admin.test_admin_list import found

pytestmark = pytest.mark.django_db

U1, A1, U2, U3 = UserMessage("Where is it?"), AiMessage("In Hamburg"), UserMessage("Thanks"), UserMessage("Bye")


@pytest.fixture
def reader(client):
    client.force_login(staff("view_conversation", "view_message_text"))
    return client


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

        form = html[html.index('class="cm-owner"') :].partition("</form>")[0]
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
        assert found(reader, updated_at__year=timezone.now().year - 3) == []

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
        conversation(U1, ToolExecutionResultMessage("1", "tool", "no", is_error=True))
        Message.objects.update(is_complete=False)

        with django_assert_num_queries(9) as captured:  # without owners
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

    @pytest.mark.parametrize("column", range(1, 8))
    def test_the_list_can_be_sorted_by_every_column(self, reader, column):
        conversation(U1, A1, memory_id="a", title="2")
        counted(U1, memory_id="b", title="1")

        forwards = [each.pk for each in reader.get(page("changelist"), {"o": column}).context["cl"].result_list]
        backwards = [each.pk for each in reader.get(page("changelist"), {"o": -column}).context["cl"].result_list]

        assert len(forwards) == len(backwards) == 2


class TestDates:
    """The date hierarchy: the years, months and days that it offers."""

    @pytest.fixture(autouse=True)
    def conversations(self):
        for memory_id, month in (("june", 6), ("july", 7)):
            conversation(U1, memory_id=memory_id)
            moment = to_moment(datetime.datetime(2026, month, 21, 12, tzinfo=datetime.UTC))
            Conversation.objects.filter(memory_id=memory_id).update(updated_at=moment)

    @pytest.mark.parametrize(
        ("date", "ids"),
        [
            ({"year": 2026}, ["july", "june"]),
            ({"year": 2026, "month": 7}, ["july"]),
            ({"year": 2026, "month": 7, "day": 21}, ["july"]),
            ({"year": 2026, "month": 7, "day": 22}, []),
        ],
    )
    def test_dates_narrow_the_list(self, reader, date, ids):
        assert found(reader, **{f"updated_at__{part}": number for part, number in date.items()}) == ids

    def test_dates_drill_down_to_months_and_days(self, reader):
        months = reader.get(page("changelist")).content.decode()
        days = reader.get(page("changelist"), {"updated_at__year": 2026, "updated_at__month": 7}).content.decode()

        assert 'href="?updated_at__month=6&amp;updated_at__year=2026"' in months
        assert 'href="?updated_at__day=21&amp;updated_at__month=7&amp;updated_at__year=2026"' in days

    @pytest.mark.parametrize("zone", ["UTC", "Antarctica/Vostok"])
    @pytest.mark.parametrize("use_tz", [True, False])
    def test_dates_are_offered_if_the_database_knows_the_time_zone(self, reader, settings, use_tz, zone):
        settings.USE_TZ, settings.TIME_ZONE = use_tz, zone
        is_known = connection.vendor != "mysql" or zone == "UTC" or not use_tz or knows_time_zone("default", zone)

        response = reader.get(page("changelist"))

        assert response.status_code == 200
        assert ("updated_at__month=7" in response.content.decode()) == is_known

    def test_without_time_zone_tables_dates_are_hidden_but_their_parameters_still_filter(self, reader, monkeypatch):
        monkeypatch.setattr(changelist, "knows_time_zone", lambda alias, name: False)

        assert "updated_at__month" not in reader.get(page("changelist")).content.decode()
        assert found(reader, updated_at__year=2026, updated_at__month=6) == ["june"]


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
