"""The list of conversations in the admin: its columns, search, filters and costs."""

import datetime
import re
from html import unescape

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone

from chatmemory_django import operations
from chatmemory_django.admin import changelist, filters
from chatmemory_django.db.moments import knows_time_zone, to_moment
from chatmemory_django.messages import AiMessage, SystemMessage, ToolExecutionResultMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from tests.faces.admin.admin_site import MESSAGE_WINDOW, TOKEN_WINDOW, conversation, counted, page, staff

pytestmark = pytest.mark.django_db

U1, A1, U2, U3 = UserMessage("Where is it?"), AiMessage("In Hamburg"), UserMessage("Thanks"), UserMessage("Bye")


@pytest.fixture
def reader(client):
    client.force_login(staff("view_conversation", "view_message_text"))
    return client


def found(client, **query) -> list[str]:
    response = client.get(page("changelist"), query)
    assert response.status_code == 200
    return sorted(each.memory_id for each in response.context["cl"].result_list)


def cells(client, field: str, **query) -> list[str]:
    html = client.get(page("changelist"), query).content.decode()
    return re.findall(rf'class="field-{field}[^>]*>(.*?)</t[dh]>', html, re.DOTALL)


class TestColumns:
    def test_a_row_shows_owner_counts_and_time(self, reader):
        ann = User.objects.create_user("ann")
        conversation(U1, A1, U2, U3, memory_id="shop-1", owner=ann, title="Parcels")

        html = reader.get(page("changelist")).content.decode()

        assert "shop-1" in html
        assert "Parcels" in html
        assert 'href="?owner=ann"' in html
        assert "4" in cells(reader, "messages")[0]
        assert "3" in cells(reader, "remembered")[0]

    def test_a_uuid_is_shortened_and_complete_on_hover_and_for_screen_readers(self, reader):
        whole = "0192f5a0-7d3e-7c21-9b1a-5d2f4e0b7a11"
        conversation(U1, memory_id=whole)

        (cell,) = cells(reader, "memory_id")

        assert f'title="{whole}"' in cell
        assert '<span aria-hidden="true">0192f5a0…0b7a11</span>' in cell
        assert f'<span class="cm-unseen">{whole}</span>' in cell

    def test_other_memory_ids_are_shown_in_full(self, reader):
        whole = "x0192f5a0-7d3e-7c21-9b1a-5d2f4e0b7a11"
        conversation(U1, memory_id=whole)

        assert f'<bdi class="cm-id" title="{whole}">{whole}</bdi>' in cells(reader, "memory_id")[0]

    def test_the_last_activity_is_shown_with_its_time_zone(self, reader, settings):
        settings.TIME_ZONE = "Europe/Berlin"
        conversation(U1)
        Conversation.objects.update(updated_at=datetime.datetime(2026, 11, 21, 9, 30, tzinfo=datetime.UTC))

        (cell,) = cells(reader, "last_activity")

        assert '<time class="cm-moment" datetime="2026-11-21T09:30:00+00:00">' in cell
        assert "Nov. 21, 2026, 10:30 a.m. CET" in cell

    def test_tokens_are_shown_with_the_limit_of_the_settings(self, reader, settings):
        settings.CHATMEMORY = TOKEN_WINDOW
        counted(UserMessage("word " * 247))  # 250 of 1,000 tokens

        (cell,) = cells(reader, "tokens")

        assert "250" in cell
        assert 'class="cm-bar-used" width="25.00"' in cell
        assert 'aria-label="of 1,000"' in cell

    def test_tokens_counted_by_another_estimator_are_shown_without_a_limit(self, reader, settings):
        settings.CHATMEMORY = {
            "MEMORY": {
                "CLASS": "chatmemory_django.memory.TokenWindowChatMemory",
                "OPTIONS": {"max_tokens": 1000, "token_count_estimator": "gpt-4o"},
            }
        }
        counted(U1)

        (cell,) = cells(reader, "tokens")

        assert "6" in cell
        assert "cm-bar" not in cell

    def test_an_uncounted_memory_shows_no_tokens(self, reader):
        conversation(U1)

        assert cells(reader, "tokens") == ["-"]

    def test_with_a_message_limit_the_bar_shows_messages(self, reader, settings):
        settings.CHATMEMORY = MESSAGE_WINDOW
        conversation(U1, A1)

        assert 'width="5.00"' in cells(reader, "remembered")[0]

    @pytest.mark.parametrize(
        "memory", [lambda memory_id: 1 / 0, {"CLASS": "nowhere.Memory"}], ids=["function", "wrong"]
    )
    def test_with_a_dynamic_limit_there_is_no_bar(self, reader, settings, memory):
        settings.CHATMEMORY = {"MEMORY": memory}
        conversation(U1)
        counted(U1, memory_id="d")

        html = reader.get(page("changelist")).content.decode()

        assert 'class="cm-bar"' not in html


class TestSearch:
    @pytest.fixture(autouse=True)
    def conversations(self):
        conversation(U1, memory_id="shop-1", title="Parcels", owner=User.objects.create_user("ann"))
        conversation(UserMessage("お茶をください"), memory_id="other")
        conversation(UserMessage("100 %"), memory_id="third")

    @pytest.mark.parametrize("text", ["shop", "PARCEL", "ann", "where is"])
    def test_search_covers_memory_ids_titles_owners_and_messages(self, reader, text):
        assert found(reader, q=text) == ["shop-1"]

    @pytest.mark.parametrize(("text", "ids"), [("お茶", ["other"]), ("%", ["third"]), ("_", []), ("a\0b", None)])
    def test_any_text_can_be_searched(self, reader, text, ids):
        assert found(reader, q=text) == (["other", "shop-1", "third"] if ids is None else ids)

    def test_users_without_permission_to_read_do_not_search_messages(self, client):
        client.force_login(staff("view_conversation"))

        assert found(client, q="where is") == []
        assert found(client, q="shop") == ["shop-1"]

    def test_too_many_matches_show_the_newest_with_a_notice(self, reader, monkeypatch):
        monkeypatch.setattr(filters, "MAX_FOUND", 2)

        response = reader.get(page("changelist"), {"q": "r"})

        assert [each.memory_id for each in response.context["cl"].result_list] == ["third", "other"]
        assert "More than 2 conversations match" in response.content.decode()

    def test_a_match_in_messages_links_to_the_search_in_the_conversation(self, reader):
        conversation(U1, memory_id="where is it")  # matches both
        conversation(U2, memory_id="somewhere is", title="Where is Ann?")  # matches only its names

        html = reader.get(page("changelist"), {"q": "where is"}).content.decode()

        links = {unescape(link).partition("?") for link in re.findall(r'href="(/[^"]*/change/[^"]*)"', html)}
        in_text = {row.pk for row in Conversation.objects.filter(memory_id__in=("shop-1", "where is it"))}
        assert {path for path, _, query in links if "q=where+is&" in f"{query}&"} == {
            page("change", pk) for pk in in_text
        }
        assert len(links) == 3

    def test_users_without_permission_to_read_get_no_link_to_matches(self, client):
        client.force_login(staff("view_conversation"))
        conversation(UserMessage("shop"), memory_id="shop-2")

        html = client.get(page("changelist"), {"q": "shop"}).content.decode()

        assert len(re.findall(r'/change/\?_changelist_filters=q%3Dshop"', html)) == 2
        assert "change/?q=" not in html

    def test_messages_are_searched_in_one_statement(self, reader, django_assert_num_queries):
        with django_assert_num_queries(12) as captured:
            reader.get(page("changelist"), {"q": "where is"})

        searches = [query for query in captured if "chatmemory_message" in query["sql"]]
        assert len(searches) == 1


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


class TestCost:
    @pytest.mark.parametrize("number", [1, 60])
    def test_the_list_takes_9_statements_for_any_number_of_rows(self, reader, number, django_assert_num_queries):
        ann = User.objects.create_user("ann")
        for index in range(number):
            conversation(SystemMessage("Be brief"), U1, A1, U2, U3, memory_id=f"c{index}", owner=ann)

        # The session, the user, two for permissions; the number of rows, the span of dates, the days in it, the rows,
        # their owners.
        with django_assert_num_queries(9) as captured:
            reader.get(page("changelist"))

        assert not any("chatmemory_message" in query["sql"] for query in captured)
