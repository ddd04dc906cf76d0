"""Branches in the admin: the messages of a page, "2 of 3" at a message, and how to rewind, switch and remove."""

import re

import pytest
from django.contrib.admin.models import CHANGE, LogEntry

from chatmemory_django.admin.figures import read_gauge
from chatmemory_django.messages import (
    AiMessage,
    SystemMessage,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation, Message
from chatmemory_django.provider import get_chat_memory
from tests.faces.admin.admin_site import EVERYTHING, conversation, page, shown, staff

pytestmark = pytest.mark.django_db

OPERATIONS = {
    "rewind": "change_conversation",
    "switch": "change_conversation",
    "fork": "add_conversation",
    "remove": "delete_message",
}
WITHOUT_TEXT = [each for each in EVERYTHING if each != "view_message_text"]
SECRET = "the launch code is 0000"


@pytest.fixture
def reader(client):
    client.force_login(staff(*EVERYTHING))
    return client


@pytest.fixture
def memory():
    return get_chat_memory("c")


@pytest.fixture
def talk(memory):
    """Create a question (1) with three answers: 2, followed by thanks (3); 4; and 5, which is active."""
    memory.add(UserMessage("question"), AiMessage("answer one"), UserMessage("thanks"))
    for answer in ("answer two", "answer three"):
        memory.rewind(1)
        memory.add(AiMessage(answer))
    return Conversation.objects.get()


def sequences(html: str) -> list[int]:
    return [int(number) for number in re.findall(r'id="m-(\d+)"', html)]


def bubble(html: str, sequence: int) -> str:
    return html[html.index(f'id="m-{sequence}"') :].partition("<article")[0]


def place(html: str, sequence: int) -> tuple[str, list[str]] | None:
    """Return the position shown at a message, and where its arrows lead."""
    found = re.search(r'class="cm-place".*?</span>', bubble(html, sequence), re.DOTALL)
    if found is None:
        return None
    words = re.sub(r"<.*?>", "", found[0].partition(">")[2])
    return re.search(r"\d+ of \d+", words)[0], re.findall(r'href="([^"]+)"', found[0])


def path_of(talk) -> list[int]:
    return [row.sequence for row in talk.history()]


def logged() -> list[str]:
    return [entry.get_change_message() for entry in LogEntry.objects.order_by("pk")]


class TestTranscript:
    def test_the_transcript_shows_the_active_branch(self, reader, talk):
        assert sequences(shown(reader, talk)) == [1, 5]

    def test_all_branches_can_be_shown_with_inactive_messages_marked(self, reader, talk):
        html = shown(reader, talk, branches="all")

        assert sequences(html) == [1, 2, 3, 4, 5]
        badges = {each: re.findall(r"cm-badge[^>]*>([^<]+)", bubble(html, each)) for each in sequences(html)}
        assert [each for each, words in badges.items() if words == ["on another branch"]] == [2, 3, 4]
        assert "Show only the current branch" in html

    def test_a_message_with_alternatives_shows_its_position_and_links_to_the_others(self, reader, talk):
        html = shown(reader, talk, branches="all")

        assert place(html, 2) == ("1 of 3", [page("switch", talk.pk, 4)])
        assert place(html, 4) == ("2 of 3", [page("switch", talk.pk, 2), page("switch", talk.pk, 5)])
        assert place(html, 5) == ("3 of 3", [page("switch", talk.pk, 4)])
        assert place(html, 1) is None
        assert place(html, 3) is None
        assert place(shown(reader, talk), 5) == place(html, 5)

    def test_users_without_permission_to_switch_get_links_to_the_alternatives(self, client, talk):
        client.force_login(staff("view_conversation", "view_message_text"))

        _, [address] = place(shown(client, talk), 5)

        address, _, anchor = address.replace("&amp;", "&").partition("#")
        assert f'id="{anchor}"' in client.get(address).content.decode()
        assert anchor == "m-4"

    def test_a_conversation_without_branches_mentions_none(self, reader):
        html = shown(reader, conversation(UserMessage("one")))

        assert "branch" not in html.replace("Switch to this branch", "").lower().partition("cm-messages")[2]

    def test_users_without_permission_to_read_see_positions_but_no_text(self, client, talk):
        client.force_login(staff("view_conversation"))

        html = shown(client, talk, branches="all")

        assert place(html, 4)[0] == "2 of 3"
        assert "answer" not in html

    def test_pagination_ends_where_the_branch_ends(self, reader, memory):
        memory.add(*[UserMessage(f"old {number}") for number in range(70)])
        memory.rewind(0)
        memory.add(*[UserMessage(f"new {number}") for number in range(60)])
        memory.rewind(125)
        talk = Conversation.objects.get()

        newest = shown(reader, talk)
        older = shown(reader, talk, before=76)
        oldest = shown(reader, talk, after=0)
        beyond = shown(reader, talk, before=999)

        assert sequences(newest) == list(range(76, 126))
        assert 'rel="next"' not in newest
        assert sequences(older) == list(range(71, 76))
        assert 'rel="prev"' not in older
        assert 'href="?after=75"' in older
        assert sequences(oldest) == list(range(71, 121))
        assert 'rel="prev"' not in oldest
        assert 'href="?after=120"' in oldest
        assert 'rel="next"' not in beyond

    def test_pagination_keeps_showing_all_branches(self, reader, memory):
        memory.add(*[UserMessage(f"old {number}") for number in range(120)])
        memory.rewind(60)

        html = shown(reader, Conversation.objects.get(), branches="all", after=20)

        assert 'href="?before=21&amp;branches=all"' in html or 'href="?before=21&branches=all"' in html
        assert 'name="branches" value="all"' in html

    @pytest.mark.parametrize("alternatives", [2, 1_000])
    def test_positions_take_three_statements_for_any_number_of_alternatives(
        self, reader, memory, django_assert_num_queries, alternatives
    ):
        memory.add(UserMessage("question"), AiMessage("answer"))
        talk = Conversation.objects.get()
        last = alternatives + 1
        answers = [
            Message(conversation=talk, sequence=each, type="AI", text="x", parent_sequence=1, on_path=each == last)
            for each in range(3, last + 1)
        ]
        Message.objects.bulk_create(answers, batch_size=500)
        Message.objects.filter(sequence=2).update(on_path=False)
        Conversation.objects.update(next_sequence=last + 1, memory_messages=0, memory_tokens=0, window_start=last + 1)

        with django_assert_num_queries(10 + 2):
            html = shown(reader, talk)
        with django_assert_num_queries(7 + 3):
            everything = shown(reader, talk, branches="all", after=0)

        count = f"{alternatives:,}"
        assert f"{count} of {count}" in bubble(html, last)
        assert f"1 of {count}" in bubble(everything, 2)


class TestNavigation:
    def test_a_message_on_another_branch_has_a_page_that_names_its_branch(self, reader, talk):
        html = reader.get(page("message", talk.pk, 3)).content.decode()

        assert "thanks" in html
        assert ">on another branch<" in html
        assert f'href="{page("message", talk.pk, 2)}" rel="prev"' in html
        assert re.search(r'href="[^"]+branches=all#m-3"', html)

    def test_the_next_message_is_on_the_active_branch(self, reader, talk):
        html = reader.get(page("message", talk.pk, 1)).content.decode()

        assert f'href="{page("message", talk.pk, 5)}" rel="next"' in html

    def test_a_search_covers_the_active_branch_or_all_branches(self, reader, talk):
        assert "answer" not in shown(reader, talk, q="thanks").replace("answer th", "")
        assert "?after=0#m-5" in shown(reader, talk, q="answer")
        assert "#m-4" not in shown(reader, talk, q="answer")

        html = shown(reader, talk, q="answer", branches="all")

        assert re.findall(r"#m-(\d)", html) == ["5", "4", "2"]
        assert html.count(">on another branch<") == 2
        assert re.findall(r"branches=all#m-(\d)", html) == ["4", "2"]

    def test_a_jump_to_a_day_keeps_the_selection_of_branches(self, reader, talk):
        Message.objects.filter(sequence=3).update(created_at="2031-02-03T12:00Z")

        for query, sequence in (({}, 5), ({"branches": "all"}, 3)):
            address = reader.get(page("change", talk.pk), {"on": "2031-02-03", **query})["Location"]
            assert address.endswith(f"#m-{sequence}")

    def test_an_unfinished_turn_on_another_branch_is_linked(self, reader, talk):
        Message.objects.filter(sequence=3).update(is_complete=False)

        assert re.search(r'href="\?after=0&(amp;)?branches=all#m-3"', shown(reader, talk))

    def test_a_removed_message_has_no_page_and_appears_on_none(self, reader, talk, memory):
        memory.remove(3)

        assert reader.get(page("message", talk.pk, 3)).status_code == 404
        assert sequences(shown(reader, talk, branches="all")) == [1, 2, 4, 5]


class TestSummaries:
    @pytest.fixture
    def talk(self):
        """Create five messages, the last two in the memory after a summary (6) of the others."""
        talk = conversation(*[UserMessage(f"text {number}") for number in range(5)])
        Message.objects.create(
            conversation=talk,
            sequence=6,
            type="SYSTEM",
            text="they greeted",
            in_history=False,
            on_path=False,
            superseded=True,
            parent_sequence=3,
            metadata={"through": 3},
            token_count=2,
        )
        Conversation.objects.update(summary_sequence=6, next_sequence=7, window_start=4, memory_messages=3)
        return Conversation.objects.get()

    def test_a_summary_is_shown_with_what_it_covers(self, reader, talk):
        html = bubble(shown(reader, talk), 6)

        assert ">Summary<" in html
        assert "covers messages up to #3" in html
        assert "they greeted" in html
        assert "compaction" not in html

    def test_the_gauge_shows_the_summary_in_position_as_its_own_kind(self, talk):
        gauge = read_gauge(talk, None)

        assert [(segment.style, segment.sequence) for segment in gauge.segments] == [
            ("summary", 6),
            ("user", 4),
            ("user", 5),
        ]
        assert [str(share.kind) for share in gauge.shares] == ["Summary", "User"]

    def test_an_outdated_summary_is_shown_only_with_all_branches(self, reader, talk):
        Conversation.objects.update(summary_sequence=None)

        assert 6 not in sequences(shown(reader, talk))
        assert 6 in sequences(shown(reader, talk, branches="all"))

    def test_a_summary_offers_no_rewind_or_switch(self, reader, talk):
        assert page("rewind", talk.pk, 6) not in shown(reader, talk)
        assert reader.post(page("rewind", talk.pk, 6), {"confirmed": "rewind"}).status_code == 404


def test_the_gauge_marks_what_the_memory_is_evicted_to():
    memory = get_chat_memory("c", max_messages=8, evict_to=6)
    memory.add(*[UserMessage(f"{number}") for number in range(9)])

    gauge = read_gauge(Conversation.objects.get(), memory.window())

    assert (gauge.total, gauge.limit, gauge.evict_to, gauge.evict_to_x) == (6, 8, 6, "750.00")


def test_a_pinned_message_inside_the_window_appears_once_in_the_gauge():
    memory = get_chat_memory("c", max_messages=3, always_keep_system_message_first=True)
    memory.add(UserMessage("one"), SystemMessage("Be brief"))

    gauge = read_gauge(Conversation.objects.get(), None)

    assert [segment.sequence for segment in gauge.segments] == [2, 1]
    assert sum(share.messages for share in gauge.shares) == gauge.total


class TestRewind:
    def test_the_confirmation_page_describes_the_rewind_and_changes_nothing(self, reader, talk):
        html = reader.get(page("rewind", talk.pk, 1)).content.decode()

        assert "1 later message will leave the memory, and will be on another branch." in html
        assert "Nothing is lost" in html
        assert "question" in html
        assert path_of(talk) == [1, 5]

    def test_a_confirmed_rewind_continues_from_the_message(self, reader, talk, memory):
        response = reader.post(page("rewind", talk.pk, 1), {"confirmed": "rewind"}, follow=True)

        assert response.redirect_chain == [(page("change", talk.pk), 302)]
        assert "Rewound to message #1." in response.content.decode()
        assert path_of(talk) == [1]
        assert memory.messages() == [UserMessage("question")]

    def test_rewind_is_not_offered_at_the_last_message_of_the_active_branch(self, reader, talk):
        html = shown(reader, talk, branches="all")

        assert [each for each in sequences(html) if page("rewind", talk.pk, each) in html] == [1, 2, 3, 4]

    def test_invalid_settings_are_reported_and_nothing_changes(self, reader, talk, settings):
        settings.CHATMEMORY = {"MEMORY": {"CLASS": "no.such.Memory"}}

        response = reader.post(page("rewind", talk.pk, 1), {"confirmed": "rewind"}, follow=True)

        assert "The settings of this memory are invalid" in response.content.decode()
        assert path_of(talk) == [1, 5]
        assert logged() == []


class TestSwitch:
    def test_switch_is_offered_only_on_other_branches(self, reader, talk):
        html = shown(reader, talk, branches="all")

        offered = [each for each in sequences(html) if "Switch to this branch" in bubble(html, each)]
        assert offered == [2, 3, 4]

    def test_the_confirmation_page_shows_the_other_message_and_changes_nothing(self, reader, talk):
        html = reader.get(page("switch", talk.pk, 2)).content.decode()

        assert "answer one" in html
        assert "will continue from the newest message that follows this one" in html
        assert path_of(talk) == [1, 5]

    def test_a_confirmed_switch_continues_from_the_newest_message_of_the_branch(self, reader, talk, memory):
        response = reader.post(page("switch", talk.pk, 2), {"confirmed": "switch"}, follow=True)

        assert "Switched to the branch of message #2; the conversation continues from #3." in response.content.decode()
        assert sequences(response.content.decode()) == [1, 2, 3]
        assert memory.messages() == [UserMessage("question"), AiMessage("answer one"), UserMessage("thanks")]


class TestRemove:
    CALL = ToolExecutionRequest(id="1", name="weather", arguments="{}")

    def test_a_confirmed_removal_takes_the_message_out_of_memory_and_history(self, reader, talk, memory):
        html = reader.get(page("remove", talk.pk, 1)).content.decode()
        assert path_of(talk) == [1, 5]

        response = reader.post(page("remove", talk.pk, 1), {"confirmed": "remove"}, follow=True)

        assert "This cannot be undone." in html
        assert 'name="with_counterparts"' not in html
        assert "Removed message #1." in response.content.decode()
        assert path_of(talk) == [5]
        assert memory.messages() == [AiMessage("answer three")]

    @pytest.mark.parametrize(("also", "left"), [({}, [1, 3]), ({"with_counterparts": "on"}, [1])])
    def test_a_tool_call_can_be_removed_with_its_result(self, reader, memory, also, left):
        memory.add(
            UserMessage("rain?"),
            AiMessage(tool_execution_requests=[self.CALL]),
            ToolExecutionResultMessage.from_request(self.CALL, "rain"),
        )
        talk = Conversation.objects.get()

        asked = reader.get(page("remove", talk.pk, 2)).content.decode()
        reader.post(page("remove", talk.pk, 2), {"confirmed": "remove", **also})

        assert 'name="with_counterparts"' in asked
        assert path_of(talk) == left
        assert logged() == ["Removed message #2." if len(left) == 2 else "Removed messages #2, #3."]

    def test_a_result_shown_within_its_call_has_its_own_buttons(self, reader, memory):
        memory.add(
            AiMessage(tool_execution_requests=[self.CALL]), ToolExecutionResultMessage.from_request(self.CALL, "rain")
        )
        talk = Conversation.objects.get()

        assert page("remove", talk.pk, 2) in shown(reader, talk)

    def test_a_message_removed_by_another_user_is_not_found(self, reader, talk, memory):
        memory.remove(5)

        assert reader.post(page("remove", talk.pk, 5), {"confirmed": "remove"}).status_code == 404
        assert logged() == []


class TestFork:
    def test_the_confirmation_page_describes_the_fork_and_changes_nothing(self, reader, talk):
        html = reader.get(page("fork", talk.pk, 3)).content.decode()

        assert "a copy of the messages up to this one" in html
        assert Conversation.objects.count() == 1

    def test_a_confirmed_fork_copies_the_path_up_to_the_message(self, reader, talk):
        response = reader.post(page("fork", talk.pk, 3), {"confirmed": "fork"}, follow=True)

        forked = Conversation.objects.exclude(pk=talk.pk).get()
        assert response.redirect_chain == [(page("change", forked.pk), 302)]
        assert logged() == [f"Forked from message #3 as “{forked.memory_id}”."]
        assert sequences(response.content.decode()) == [1, 2, 3]
        assert get_chat_memory(forked.memory_id).messages() == [
            UserMessage("question"),
            AiMessage("answer one"),
            UserMessage("thanks"),
        ]
        assert path_of(talk) == [1, 5]


class TestPermissions:
    @pytest.mark.parametrize("name", OPERATIONS)
    def test_users_without_permission_see_no_button_and_cannot_post(self, client, talk, name):
        client.force_login(staff(*(each for each in EVERYTHING if each != OPERATIONS[name])))

        for each in (1, 2, 5):
            assert page(name, talk.pk, each) not in shown(client, talk, branches="all")
            assert client.get(page(name, talk.pk, each)).status_code == 403
            assert client.post(page(name, talk.pk, each), {"confirmed": name}).status_code == 403
        assert path_of(talk) == [1, 5]

    @pytest.mark.parametrize("name", OPERATIONS)
    def test_operations_do_not_require_permission_to_read(self, client, talk, name):
        Message.objects.update(text=SECRET)
        client.force_login(staff(*WITHOUT_TEXT))

        asked = client.get(page(name, talk.pk, 2))
        done = client.post(page(name, talk.pk, 2), {"confirmed": name}, follow=True)

        assert (asked.status_code, done.status_code) == (200, 200)
        assert SECRET not in asked.content.decode() + done.content.decode()
        assert len(logged()) == 1

    @pytest.mark.parametrize("name", OPERATIONS)
    def test_requests_from_other_sites_are_rejected(self, client, talk, name):
        client.force_login(staff(*EVERYTHING))
        strict = type(client)(enforce_csrf_checks=True)
        strict.cookies = client.cookies

        assert strict.post(page(name, talk.pk, 2), {"confirmed": name}).status_code == 403
        assert path_of(talk) == [1, 5]

    @pytest.mark.parametrize("name", OPERATIONS)
    def test_anonymous_users_are_redirected_to_the_login(self, client, talk, name):
        assert "login" in client.post(page(name, talk.pk, 2), {"confirmed": name})["Location"]
        assert path_of(talk) == [1, 5]
        assert Conversation.objects.count() == 1


class TestHostile:
    @pytest.mark.parametrize("name", OPERATIONS)
    @pytest.mark.parametrize("number", [0, 6, 2**31, 2**63, 10**30])
    def test_an_unknown_message_is_not_found(self, reader, talk, name, number):
        address = page(name, talk.pk, number)

        assert reader.get(address).status_code == reader.post(address, {"confirmed": name}).status_code == 404

    @pytest.mark.parametrize("name", OPERATIONS)
    @pytest.mark.parametrize("text", ["-1", "one", "1.0", "%00", "1 or 1=1", "²"])
    def test_a_sequence_that_is_not_a_number_is_not_found(self, reader, talk, name, text):
        address = page(name, talk.pk, 4711).replace("4711", text)

        assert reader.post(address, {"confirmed": name}).status_code in {302, 404}
        assert path_of(talk) == [1, 5]

    @pytest.mark.parametrize("name", OPERATIONS)
    def test_a_message_of_another_conversation_is_not_found(self, reader, talk, name):
        other = conversation(*[UserMessage("x")] * 9, memory_id="other")

        assert reader.post(page(name, talk.pk, 9), {"confirmed": name}).status_code == 404
        assert path_of(other) == list(range(1, 10))

    @pytest.mark.parametrize("name", OPERATIONS)
    def test_the_posted_operation_is_the_one_that_was_confirmed(self, reader, talk, name):
        for confirmed in ("", "clear", "delete", {"rewind": "remove"}.get(name, "rewind")):
            assert reader.post(page(name, talk.pk, 2), {"confirmed": confirmed}).status_code == 200
        assert reader.get(page(name, talk.pk, 2), {"confirmed": name}).status_code == 200
        assert path_of(talk) == [1, 5]

    @pytest.mark.parametrize("name", OPERATIONS)
    def test_a_deleted_conversation_redirects_to_the_list(self, reader, name):
        response = reader.post(page(name, 4711, 1), {"confirmed": name})

        assert (response.status_code, response["Location"]) == (302, page("changelist"))

    @pytest.mark.parametrize("query", ["ALL", "1", "<script>", "all "])
    def test_an_invalid_branches_parameter_shows_the_active_branch(self, reader, talk, query):
        assert sequences(shown(reader, talk, branches=query)) == [1, 5]

    def test_message_text_is_escaped_and_not_logged(self, reader, talk):
        Message.objects.filter(sequence=2).update(text="<script>alert(1)</script>")

        assert "<script>alert" not in reader.get(page("switch", talk.pk, 2)).content.decode()
        reader.post(page("switch", talk.pk, 2), {"confirmed": "switch"})

        entry = LogEntry.objects.get()
        assert "script" not in entry.get_change_message() + entry.object_repr
        assert (entry.object_repr, entry.action_flag, entry.user.username) == ("c", CHANGE, "staff")


def test_without_history_the_pages_warn_about_permanent_deletion(reader, talk, settings):
    settings.CHATMEMORY = {"KEEP_HISTORY": False}

    for name in ("rewind", "switch", "remove"):
        assert "the messages are deleted permanently" in reader.get(page(name, talk.pk, 1)).content.decode()
