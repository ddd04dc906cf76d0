"""The list of conversations in the admin: what it shows, finds and narrows, and what that costs."""

import datetime
import re

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from chatmemory_django import operations
from chatmemory_django.admin import conversations as admin_of_conversations
from chatmemory_django.messages import AiMessage, SystemMessage, UserMessage
from chatmemory_django.models import Conversation
from tests.admin_site import MESSAGE_WINDOW, TOKEN_WINDOW, conversation, counted, page, staff

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
    def test_a_row_tells_who_said_how_much_and_when(self, reader):
        ann = User.objects.create_user("ann")
        conversation(U1, A1, U2, U3, memory_id="shop-1", owner=ann, title="Parcels")

        html = reader.get(page("changelist")).content.decode()

        assert "shop-1" in html
        assert "Parcels" in html
        assert 'href="?owner=ann"' in html
        assert cells(reader, "total_messages") == ["4"]
        assert "3" in cells(reader, "remembered")[0]

    def test_tokens_are_shown_against_the_limit_of_the_settings(self, reader, settings):
        settings.CHATMEMORY = TOKEN_WINDOW
        counted(UserMessage("word " * 247))  # 250 tokens of 1,000

        (cell,) = cells(reader, "tokens")

        assert "250" in cell
        assert 'class="cm-bar-used" width="25.00"' in cell
        assert 'aria-label="of 1,000"' in cell

    def test_tokens_that_another_estimator_counted_are_shown_without_a_limit(self, reader, settings):
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

    def test_what_was_not_counted_has_no_number_of_tokens(self, reader):
        conversation(U1)

        assert cells(reader, "tokens") == ["-"]

    def test_where_the_limit_is_one_of_messages_the_bar_is_that_of_messages(self, reader, settings):
        settings.CHATMEMORY = MESSAGE_WINDOW
        conversation(U1, A1)

        assert 'width="5.00"' in cells(reader, "remembered")[0]

    @pytest.mark.parametrize(
        "memory", [lambda memory_id: 1 / 0, {"CLASS": "nowhere.Memory"}], ids=["function", "wrong"]
    )
    def test_where_the_limit_is_not_the_same_for_all_there_is_no_bar(self, reader, settings, memory):
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
    def test_memory_ids_titles_owners_and_what_was_said_are_found(self, reader, text):
        assert found(reader, q=text) == ["shop-1"]

    @pytest.mark.parametrize(("text", "ids"), [("お茶", ["other"]), ("%", ["third"]), ("_", []), ("a\0b", None)])
    def test_any_text_can_be_searched_for(self, reader, text, ids):
        assert found(reader, q=text) == (["other", "shop-1", "third"] if ids is None else ids)

    def test_who_may_not_read_what_was_said_does_not_find_it_either(self, client):
        client.force_login(staff("view_conversation"))

        assert found(client, q="where is") == []
        assert found(client, q="shop") == ["shop-1"]

    def test_of_too_many_the_newest_are_shown_and_that_is_said(self, reader, monkeypatch):
        monkeypatch.setattr(admin_of_conversations, "MAX_FOUND", 2)

        response = reader.get(page("changelist"), {"q": "r"})

        assert [each.memory_id for each in response.context["cl"].result_list] == ["third", "other"]
        assert "More than 2 conversations were found" in response.content.decode()

    def test_what_was_said_is_searched_in_one_statement(self, reader, django_assert_num_queries):
        with django_assert_num_queries(11) as captured:
            reader.get(page("changelist"), {"q": "where is"})

        searches = [query for query in captured if "chatmemory_message" in query["sql"]]
        assert len(searches) == 1


class TestFilters:
    def test_by_owner(self, reader):
        conversation(U1, memory_id="a", owner=User.objects.create_user("ann"))
        conversation(U1, memory_id="b", owner=User.objects.create_user("bob"))
        conversation(U1, memory_id="nobodys")

        assert found(reader, owner="ann") == ["a"]
        assert found(reader, owner="/") == ["nobodys"]
        assert found(reader, owner="") == ["a", "b", "nobodys"]
        assert found(reader, owner="an") == []
        assert found(reader, owner="a\0") == []

    def test_the_form_for_an_owner_keeps_what_else_was_asked_for(self, reader):
        html = reader.get(page("changelist"), {"q": "x", "active": "7", "owner": "<ann>", "p": "1"}).content.decode()

        form = html[html.index('class="cm-owner"') :].partition("</form>")[0]
        assert '<input type="hidden" name="q" value="x">' in form
        assert '<input type="hidden" name="active" value="7">' in form
        assert 'value="&lt;ann&gt;"' in form
        assert 'name="p"' not in form

    def test_by_activity(self, reader):
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

    def test_by_evictions(self, reader):
        conversation(U1, A1, U2, U3, memory_id="evicted")
        conversation(U1, memory_id="whole")

        assert found(reader, evictions="yes") == ["evicted"]
        assert found(reader, evictions="no") == ["whole"]
        assert found(reader, evictions="?") == ["evicted", "whole"]

    def test_by_memory(self, reader):
        conversation(U1, memory_id="used")
        conversation(U1, memory_id="cleared")
        Conversation.objects.create(memory_id="unused")
        operations.clear(Conversation.objects.filter(memory_id="cleared"))

        assert found(reader, memory="used") == ["used"]
        assert found(reader, memory="empty") == ["cleared", "unused"]
        assert found(reader, memory="unused") == ["unused"]
        assert found(reader, memory="?") == ["cleared", "unused", "used"]

    @pytest.mark.parametrize("column", range(1, 8))
    def test_the_list_can_be_sorted_by_every_column(self, reader, column):
        conversation(U1, A1, memory_id="a", title="2")
        counted(U1, memory_id="b", title="1")

        forwards = [each.pk for each in reader.get(page("changelist"), {"o": column}).context["cl"].result_list]
        backwards = [each.pk for each in reader.get(page("changelist"), {"o": -column}).context["cl"].result_list]

        assert len(forwards) == len(backwards) == 2


class TestCost:
    @pytest.mark.parametrize("number", [1, 60])
    def test_the_list_takes_9_statements_however_many_rows_it_has(self, reader, number, django_assert_num_queries):
        ann = User.objects.create_user("ann")
        for index in range(number):
            conversation(SystemMessage("Be brief"), U1, A1, U2, U3, memory_id=f"c{index}", owner=ann)

        # The session, the user, two for permissions; the number of rows, the span of dates, the days in it, the rows,
        # their owners.
        with django_assert_num_queries(9) as captured:
            reader.get(page("changelist"))

        assert not any("chatmemory_message" in query["sql"] for query in captured)
