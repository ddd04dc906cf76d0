"""The list of conversations in the admin: its columns, search, filters and costs."""

import datetime
import re
from html import unescape

import pytest
from django.contrib.auth.models import User

from chatmemory_django.admin import filters
from chatmemory_django.messages import AiMessage, SystemMessage, UserMessage
from chatmemory_django.models import Conversation
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
        assert "3 in memory" in cells(reader, "messages")[0]

    def test_an_owner_is_shown_as_the_site_shows_users(self, reader, monkeypatch):
        monkeypatch.setattr(User, "__str__", lambda user: f"Ms {user.username.title()}")
        conversation(U1, owner=User.objects.create_user("ann"))

        (cell,) = cells(reader, "owner")

        assert 'href="?owner=ann"' in cell
        assert ">Ms Ann<" in cell

    def test_the_owner_filter_calls_names_what_the_user_model_calls_them(self, reader, monkeypatch):
        monkeypatch.setattr(User._meta.get_field("username"), "verbose_name", "email address")

        html = reader.get(page("changelist")).content.decode()

        assert 'aria-label="Email address of the owner" placeholder="Email address"' in html

    def test_a_long_memory_id_is_shortened_and_complete_on_hover_and_for_screen_readers(self, reader):
        whole = "0192f5a0-7d3e-7c21-9b1a-5d2f4e0b7a11"
        conversation(U1, memory_id=whole)

        (cell,) = cells(reader, "memory_id")

        assert f'title="{whole}"' in cell
        assert '<span aria-hidden="true">0192f5…0b7a11</span>' in cell
        assert f'<span class="cm-unseen">{whole}</span>' in cell

    def test_memory_ids_with_the_same_beginning_are_shown_from_their_end(self, reader):
        for name in ("orders", "returns"):
            conversation(U1, memory_id=f"0192f5a0-7d3e-7c21-9b1a-5d2f4e0b7a11:{name}")

        shown = re.findall(r'aria-hidden="true">(.*?)<', "".join(cells(reader, "memory_id")))

        assert shown == ["…7a11:returns", "…b7a11:orders"]

    def test_a_memory_id_that_was_searched_is_shown_in_full(self, reader):
        whole = "shop:0192f5a0-7d3e-7c21-9b1a-5d2f4e0b7a11"
        conversation(U1, memory_id=whole)

        (cell,) = cells(reader, "memory_id", q="7D3E")

        assert "shop:0192f5a0-<mark>7d3e</mark>-7c21-9b1a-5d2f4e0b7a11" in cell

    def test_the_last_activity_is_shown_with_its_time_zone(self, reader, settings):
        settings.TIME_ZONE = "Europe/Berlin"
        conversation(U1)
        Conversation.objects.update(updated_at=datetime.datetime(2026, 11, 21, 9, 30, tzinfo=datetime.UTC))

        (cell,) = cells(reader, "last_activity")

        assert '<time class="cm-moment" datetime="2026-11-21T09:30:00+00:00">' in cell
        assert "Nov. 21, 2026, 10:30 a.m. CET" in cell

    def test_the_bar_shows_the_tokens_in_memory_where_they_are_limited(self, reader, settings):
        settings.CHATMEMORY = TOKEN_WINDOW
        counted(UserMessage("word " * 247))  # 250 of 1,000 tokens

        (cell,) = cells(reader, "messages")

        assert 'class="cm-bar-used" width="25.00"' in cell
        assert 'aria-label="250 of 1,000 tokens"' in cell

    def test_tokens_counted_by_another_estimator_have_no_bar(self, reader, settings):
        settings.CHATMEMORY = {
            "MEMORY": {
                "CLASS": "chatmemory_django.memory.TokenWindowChatMemory",
                "OPTIONS": {"max_tokens": 1000, "token_count_estimator": "gpt-4o"},
            }
        }
        counted(U1)

        assert "cm-bar" not in cells(reader, "messages")[0]

    def test_with_a_message_limit_the_bar_shows_messages(self, reader, settings):
        settings.CHATMEMORY = MESSAGE_WINDOW
        conversation(U1, A1)

        assert 'width="5.00"' in cells(reader, "messages")[0]

    def test_where_the_memory_is_a_function_each_row_has_its_own_limit(self, reader, settings):
        def memory_of(memory_id):
            options = {"max_messages": 2 if memory_id == "small" else 8}
            return {"CLASS": "chatmemory_django.memory.MessageWindowChatMemory", "OPTIONS": options}

        settings.CHATMEMORY = {"MEMORY": memory_of}
        for memory_id in ("small", "large"):
            conversation(U1, A1, memory_id=memory_id)

        assert re.findall(r'cm-bar-used" width="(.*?)"', "".join(cells(reader, "messages"))) == ["25.00", "100.00"]

    @pytest.mark.parametrize(
        "memory", [lambda memory_id: 1 / 0, {"CLASS": "nowhere.Memory"}], ids=["function", "wrong"]
    )
    def test_with_wrong_settings_there_is_no_bar(self, reader, settings, memory):
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

    def test_where_nothing_has_all_words_any_of_them_are_offered(self, reader):
        response = reader.get(page("changelist"), {"q": "lost 100 bags", "evictions": "no"})

        assert not response.context["cl"].result_list
        html = response.content.decode()
        assert "No conversation has all of these words." in html
        [link] = re.findall(r'<a href="([^"]*)">Search for any of them</a>', html)
        again = reader.get(page("changelist") + unescape(link))
        assert [each.memory_id for each in again.context["cl"].result_list] == ["third"]
        html = again.content.decode()
        [back] = re.findall(r'<a href="([^"]*)">Search for all of them</a>', html)
        assert not reader.get(page("changelist") + unescape(back)).context["cl"].result_list
        assert "evictions=no" in unescape(link)
        assert "evictions=no" in unescape(back)

    @pytest.mark.parametrize("text", ["lost", "", "where is", "0192f5a0-7d3e-7c21-9b1a-5d2f4e0b7a11"])
    def test_nothing_is_offered_for_one_word_or_where_something_is_found(self, reader, text):
        assert "any of them" not in reader.get(page("changelist"), {"q": text}).content.decode()

    def test_users_without_permission_to_read_are_offered_nothing(self, client):
        client.force_login(staff("view_conversation"))

        assert "any of them" not in client.get(page("changelist"), {"q": "lost 100 bags"}).content.decode()
        assert found(client, q="lost 100 bags", match="any") == []

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

        assert len(re.findall(r'/change/\?_changelist_filters=q%3Dshop#newest"', html)) == 2
        assert "change/?q=" not in html

    def test_messages_are_searched_once_and_again_for_the_page(self, reader, django_assert_num_queries):
        with django_assert_num_queries(11) as captured:
            reader.get(page("changelist"), {"q": "where is"})

        searches = [query for query in captured if "chatmemory_message" in query["sql"]]
        assert len(searches) == 4
        assert "found_in" in searches[1]["sql"]  # of the conversations on the page
        assert "_part" in searches[3]["sql"]  # the excerpts of what was found, those of long texts before

    def test_a_whole_memory_id_is_found_without_reading_messages(self, reader, django_assert_num_queries):
        whole = "0192f5a0-7d3e-7c21-9b1a-5d2f4e0b7a11"
        conversation(U1, memory_id=whole, title="Parcels")
        conversation(UserMessage(f"about {whole}"), memory_id="quotes it")

        with django_assert_num_queries(7) as captured:
            response = reader.get(page("changelist"), {"q": f" {whole.upper()} "})

        assert [each.memory_id for each in response.context["cl"].result_list] == [whole]
        assert not any("chatmemory_message" in query["sql"] for query in captured)


class TestCost:
    @pytest.mark.parametrize("number", [1, 60])
    def test_the_list_takes_8_statements_for_any_number_of_rows(self, reader, number, django_assert_num_queries):
        ann = User.objects.create_user("ann")
        for index in range(number):
            conversation(SystemMessage("Be brief"), U1, A1, U2, U3, memory_id=f"c{index}", owner=ann)

        # The session, the user, two for permissions; the number of rows, the rows, their owners, how they begin.
        with django_assert_num_queries(8) as captured:
            reader.get(page("changelist"))

        assert sum("chatmemory_message" in query["sql"] for query in captured) == 1

    def test_no_message_is_read_where_all_have_titles_or_no_one_may_read(self, client, django_assert_num_queries):
        conversation(U1, memory_id="titled", title="Parcels")
        client.force_login(staff("view_conversation", "view_message_text"))
        with django_assert_num_queries(6):
            client.get(page("changelist"))

        conversation(U1, memory_id="untitled")
        client.force_login(staff("view_conversation", name="other"))
        with django_assert_num_queries(6) as captured:
            client.get(page("changelist"))

        assert not any("chatmemory_message" in query["sql"] for query in captured)
