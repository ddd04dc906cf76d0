"""Clear, erase, export and recount: what the admin announces, does and logs."""

import pytest
from asgiref.sync import async_to_sync
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.auth.models import User
from django.db import connection, models
from django.test import AsyncClient, RequestFactory
from django.test.utils import CaptureQueriesContext

from chatmemory_django import signals
from chatmemory_django.admin import execution
from chatmemory_django.admin import operations as wording
from chatmemory_django.messages import AiMessage, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.operations import export
from chatmemory_django.operations.jsonl import export_lines, import_lines
from example_project.models import Feedback
from tests.faces.admin.admin_site import EVERYTHING, TOKEN_WINDOW, conversation, counted, page, post_action, staff

pytestmark = pytest.mark.django_db

U1, A1, U2, U3 = UserMessage("one"), AiMessage("hello"), UserMessage("two"), UserMessage("three")


@pytest.fixture
def support(client):
    client.force_login(staff(*EVERYTHING))
    return client


@pytest.fixture
def talk():
    return conversation(U1, A1, U2, U3, memory_id="shop-1", title="Parcels")


def memory_of(talk) -> list:
    return [row.chat_message for row in Conversation.objects.get(pk=talk.pk).memory()]


def history_of(talk) -> list:
    return [row.chat_message for row in talk.history()]


class TestClear:
    def test_the_confirmation_page_describes_what_is_deleted_and_changes_nothing(self, support, talk):
        html = support.get(page("clear", talk.pk)).content.decode()

        assert "3 messages will leave the memory" in html
        assert "The history is kept: its 4 messages can still be read here." in html
        assert "shop-1" in html
        assert memory_of(talk) == [A1, U2, U3]

    def test_a_confirmed_clear_empties_the_memory_and_keeps_the_history(self, support, talk):
        response = support.post(page("clear", talk.pk), {"confirmed": "clear"}, follow=True)

        assert response.redirect_chain == [(page("change", talk.pk), 302)]
        assert "Cleared the memory of 1 conversation." in response.content.decode()
        assert "The memory is empty" in response.content.decode()
        assert memory_of(talk) == []
        assert history_of(talk) == [U1, A1, U2, U3]

    def test_without_history_the_page_warns_about_permanent_deletion(self, support, settings):
        settings.CHATMEMORY = {"KEEP_HISTORY": False}
        talk = conversation(U1, A1, U2, U3)

        html = support.get(page("clear", talk.pk)).content.decode()
        support.post(page("clear", talk.pk), {"confirmed": "clear"})

        assert "the messages are deleted permanently" in html
        assert "history is kept" not in html
        assert not Message.objects.exists()

    def test_signal_receivers_are_called(self, support, talk, django_capture_on_commit_callbacks):
        calls = []

        def receive(sender, conversation, sequences, **kwargs):
            calls.append((conversation.memory_id, sequences))

        signals.memory_cleared.connect(receive)
        try:
            with django_capture_on_commit_callbacks(execute=True):
                support.post(page("clear", talk.pk), {"confirmed": "clear"})
        finally:
            signals.memory_cleared.disconnect(receive)

        assert calls == [("shop-1", (2, 3, 4))]


class TestErase:
    def test_the_confirmation_page_lists_related_objects_and_changes_nothing(self, support, talk):
        for is_good in (True, False):
            Feedback.objects.create(conversation=talk, sequence=2, is_good=is_good)

        html = support.get(page("delete", talk.pk)).content.decode()

        assert "1 conversation will be deleted, with its memory and its entire history." in html
        assert "4 messages will be deleted." in html
        assert "Related objects to be deleted: 2 feedbacks." in html
        assert "This cannot be undone." in html
        assert history_of(talk) == [U1, A1, U2, U3]

    def test_a_confirmed_erasure_deletes_only_the_conversation_and_its_data(self, support, talk):
        other = conversation(U1, memory_id="other")
        Feedback.objects.create(conversation=talk, sequence=2, is_good=True)

        response = support.post(page("delete", talk.pk), {"confirmed": "delete"}, follow=True)

        assert response.redirect_chain == [(page("changelist"), 302)]
        assert "Erased 1 conversation." in response.content.decode()
        assert list(Conversation.objects.all()) == [other]
        assert Message.objects.count() == 1
        assert not Feedback.objects.exists()

    def test_protected_objects_prevent_the_erasure_and_are_named(self, support, talk, monkeypatch):
        def refuse(self, using=None):
            raise models.ProtectedError("held", {Feedback(pk=1, is_good=True)})

        monkeypatch.setattr(Conversation, "delete", refuse)

        response = support.post(page("delete", talk.pk), {"confirmed": "delete"}, follow=True)

        assert response.redirect_chain == [(page("change", talk.pk), 302)]
        assert (
            "“shop-1”: It cannot be erased because protected objects refer to it: feedback."
            in response.content.decode()
        )
        assert not LogEntry.objects.exists()

    def test_the_log_keeps_the_memory_id_without_messages_or_title(self, support, talk):
        support.post(page("delete", talk.pk), {"confirmed": "delete"})

        entry = LogEntry.objects.get()
        assert (entry.object_repr, entry.object_id) == ("shop-1", str(talk.pk))
        assert entry.get_change_message() == "Erased with 4 messages."
        assert "Parcels" not in str(entry)

    def test_bulk_deletion_uses_our_confirmation_page(self, support, talk):
        html = post_action(support, "delete_selected", [talk]).content.decode()

        assert 'name="confirmed" value="delete"' in html


class TestRecount:
    def test_an_uncounted_memory_is_counted(self, support, settings):
        talk = conversation(U1, A1)
        settings.CHATMEMORY = TOKEN_WINDOW

        html = support.get(page("recount", talk.pk)).content.decode()
        response = support.post(page("recount", talk.pk), {"confirmed": "recount"}, follow=True)

        assert "The tokens of 2 messages in the memory will be counted again" in html
        assert "Recounted the tokens of 1 conversation." in response.content.decode()
        talk.refresh_from_db()
        assert (talk.memory_tokens, talk.counted_by) == (8, "words")
        assert LogEntry.objects.get().get_change_message() == "Recounted: 8 tokens, previously 0."

    def test_without_an_estimator_recounting_is_rejected_with_a_message(self, support, talk, settings):
        settings.CHATMEMORY = {}

        response = support.post(page("recount", talk.pk), {"confirmed": "recount"}, follow=True)

        assert "Its settings have no token estimator whose counts can be stored." in response.content.decode()
        assert not LogEntry.objects.exists()


class TestExport:
    def lines(self, response) -> str:
        assert response.streaming
        return b"".join(response.streaming_content).decode()

    def test_the_confirmation_page_describes_the_contents_of_the_file(self, support, talk):
        html = support.get(page("export", talk.pk)).content.decode()

        assert "1 conversation will be exported to a file." in html
        assert "The file will contain all 4 messages, on all branches." in html

    @pytest.mark.parametrize(
        ("form", "suffix", "content_type"), [("html", ".html", "text/html"), ("text", ".txt", "text/plain")]
    )
    def test_an_export_for_people_is_one_document_that_is_logged(self, support, talk, form, suffix, content_type):
        response = support.post(page("export", talk.pk), {"confirmed": "export", "form": form})

        assert response["Content-Type"] == f"{content_type}; charset=utf-8"
        assert response["Content-Disposition"].endswith(f'{suffix}"')
        assert response["X-Content-Type-Options"] == "nosniff"
        assert self.lines(response) == "".join(export(Conversation.objects.all(), form=form))
        assert "Exported" in LogEntry.objects.get().change_message

    def test_an_unknown_form_is_a_bad_request(self, support, talk):
        assert support.post(page("export", talk.pk), {"confirmed": "export", "form": "exe"}).status_code == 400
        assert not LogEntry.objects.exists()

    def test_an_imported_export_restores_the_conversation(self, support, talk):
        response = support.post(page("export", talk.pk), {"confirmed": "export"})
        text = self.lines(response)

        assert response["Content-Disposition"].startswith('attachment; filename="conversations-')
        assert response["X-Content-Type-Options"] == "nosniff"
        assert text == "".join(export_lines(Conversation.objects.all()))
        talk.delete()
        assert import_lines(text.splitlines()) == 1
        imported = Conversation.objects.get()
        assert history_of(imported) == [U1, A1, U2, U3]
        assert memory_of(imported) == [A1, U2, U3]

    def test_the_export_contains_exactly_the_selected_conversations(self, support, talk):
        other = conversation(U1, memory_id="other")
        conversation(U1, memory_id="third")

        text = self.lines(post_action(support, "export_conversations", [talk, other], confirmed="export"))

        assert '"shop-1"' in text
        assert '"other"' in text
        assert '"third"' not in text
        assert LogEntry.objects.count() == 2

    @pytest.mark.parametrize("form", ["jsonl", "text"])
    def test_what_cannot_be_exported_is_left_out_and_logged_and_the_others_go_on(self, support, talk, form):
        broken, last = conversation(U1, memory_id="broken"), conversation(U2, memory_id="last")
        Message.objects.filter(conversation=broken).update(payload="{")

        text = self.lines(
            post_action(support, "export_conversations", [talk, broken, last], confirmed="export", form=form)
        )

        assert [each in text for each in ("shop-1", "last")] == [True, True]
        if form == "jsonl":
            assert '"broken"' not in text
            logged = LogEntry.objects.filter(object_id=broken.pk).order_by("pk").last().get_change_message()
            reason = "Cannot export message 1 of conversation 'broken': ValueError. See check_chatmemory."
            assert logged == f"Left out of an export: {reason}"

    def test_an_export_changes_nothing(self, support, talk):
        before = Conversation.objects.values().get()

        self.lines(support.post(page("export", talk.pk), {"confirmed": "export"}))

        assert Conversation.objects.values().get() == before
        assert LogEntry.objects.get().get_change_message() == "Exported 4 messages."

    def test_the_export_and_its_log_name_the_same_conversations(self, support, talk):
        other = conversation(U1, memory_id="other")
        untitled = Conversation.objects.filter(title="")

        response = execution.export(request_of(User.objects.get()), untitled)
        Conversation.objects.filter(pk=talk.pk).update(title="")

        assert "shop-1" not in self.lines(response)
        assert LogEntry.objects.get().object_id == str(other.pk)

    def test_under_asgi_the_export_is_streamed(self, talk):
        user = staff(*EVERYTHING)

        async def export() -> str:
            client = AsyncClient()
            await client.aforce_login(user)
            response = await client.post(page("export", talk.pk), {"confirmed": "export"})
            assert response.is_async
            return b"".join([chunk async for chunk in response.streaming_content]).decode()

        assert async_to_sync(export)() == "".join(export_lines(Conversation.objects.all()))


def request_of(user):
    request = RequestFactory().post("/")
    request.user = user
    return request


class TestDeletingAUser:
    """Django's own page that deletes a user with all related objects."""

    @pytest.fixture
    def root(self, client):
        client.force_login(User.objects.create_superuser("root"))
        return client

    @pytest.fixture
    def ann(self):
        ann = User.objects.create_user("ann")
        for index in range(3):
            talk = conversation(*[U1] * 50, memory_id=f"of ann {index}", owner=ann)
            Feedback.objects.create(conversation=talk, sequence=2, is_good=True)
        conversation(U1, memory_id="without owner")
        return ann

    def test_the_page_lists_no_messages_and_reads_none(self, root, ann):
        with CaptureQueriesContext(connection) as statements:
            html = root.get(f"/admin/auth/user/{ann.pk}/delete/").content.decode()

        assert "of ann 2" in html
        assert "Messages" not in html
        assert not [each["sql"] for each in statements if "chatmemory_message" in each["sql"]]

    def test_confirming_deletes_the_messages_without_reading_them(self, root, ann):
        with CaptureQueriesContext(connection) as statements:
            root.post(f"/admin/auth/user/{ann.pk}/delete/", {"post": "yes"})

        assert not User.objects.filter(pk=ann.pk).exists()
        assert Conversation.objects.get().memory_id == "without owner"
        assert Message.objects.count() == 1
        about_messages = [each["sql"] for each in statements if "chatmemory_message" in each["sql"]]
        assert any(sql.startswith("DELETE") for sql in about_messages)
        assert not [sql for sql in about_messages if sql.startswith('SELECT "chatmemory_message"')]


class TestListActions:
    @pytest.mark.parametrize(
        ("action", "name"),
        [("clear_memory", "clear"), ("recount_tokens", "recount"), ("delete_selected", "delete")],
    )
    def test_an_action_asks_for_confirmation_and_applies_to_the_selected(self, support, settings, action, name):
        settings.CHATMEMORY = TOKEN_WINDOW
        talks = [conversation(U1, A1, memory_id=f"talk {index}") for index in range(3)]
        before = list(Conversation.objects.order_by("pk").values())

        asked = post_action(support, action, talks[:2])
        assert list(Conversation.objects.order_by("pk").values()) == before
        done = post_action(support, action, talks[:2], confirmed=name)

        html = asked.content.decode()
        assert "talk 0" in html
        assert "talk 1" in html
        assert "talk 2" not in html
        assert done.status_code == 302
        changed = [pk for pk in (each["id"] for each in before) if pk not in self.unchanged(before)]
        assert changed == [talks[0].pk, talks[1].pk]
        assert LogEntry.objects.count() == 2

    def unchanged(self, before):
        now = {row["id"]: row for row in Conversation.objects.values()}
        return [row["id"] for row in before if now.get(row["id"]) == row]

    def test_selecting_all_respects_the_filters(self, support):
        for index in range(25):
            conversation(U1, memory_id=f"mine {index}")
        other = conversation(U1, memory_id="other")
        data = {"action": "clear_memory", "select_across": "1", "_selected_action": [str(other.pk)]}
        address = page("changelist") + "?q=mine"

        html = support.post(address, data).content.decode()
        support.post(address, {**data, "confirmed": "clear"})

        assert "25 messages will leave the memory" in html
        assert "And 5 more." in html
        assert [each.memory_id for each in Conversation.objects.filter(memory_messages__gt=0)] == ["other"]

    def test_the_posted_operation_is_the_one_that_was_confirmed(self, support, talk):
        response = post_action(support, "delete_selected", [talk], confirmed="clear")

        assert response.status_code == 200
        assert Conversation.objects.filter(pk=talk.pk).exists()
        assert memory_of(talk) != []

    def test_get_requests_change_nothing(self, support, talk):
        for name in ("clear", "delete", "recount", "export"):
            assert support.get(page(name, talk.pk), {"confirmed": name}).status_code == 200
        assert memory_of(talk) == [A1, U2, U3]
        assert not LogEntry.objects.exists()

    def test_the_log_records_who_did_what(self, support, talk):
        support.post(page("clear", talk.pk), {"confirmed": "clear"})
        support.post(page("delete", talk.pk), {"confirmed": "delete"})

        entries = LogEntry.objects.order_by("pk")
        assert {entry.user.username for entry in entries} == {"staff"}
        assert [entry.action_flag for entry in entries] == [CHANGE, DELETION]
        assert [entry.get_change_message() for entry in entries] == [
            "Cleared the memory (3 messages).",
            "Erased with 4 messages.",
        ]

    def test_a_conversation_links_to_its_log(self, support, talk):
        support.post(page("clear", talk.pk), {"confirmed": "clear"})

        assert "Cleared the memory (3 messages)." in support.get(page("history", talk.pk)).content.decode()


class TestTransactions:
    def test_each_conversation_has_its_own_transaction_so_an_error_keeps_the_earlier_ones(self, support, monkeypatch):
        first, second = (conversation(U1, memory_id=name) for name in ("first", "second"))
        logged = wording.CLEAR.logged

        def fail_at_the_second(conversation, result):
            if conversation.memory_id == "second":
                raise RuntimeError
            return logged(conversation, result)

        monkeypatch.setattr(wording.CLEAR, "logged", fail_at_the_second)

        with pytest.raises(RuntimeError):
            execution.perform(wording.CLEAR, Conversation.objects.all(), User.objects.get().pk)

        assert memory_of(first) == []
        assert memory_of(second) == [U1]
        assert [entry.object_repr for entry in LogEntry.objects.all()] == ["first"]

    @pytest.mark.parametrize("operation", [wording.CLEAR, wording.ERASE, wording.RECOUNT])
    def test_a_concurrently_erased_conversation_is_skipped(self, talk, operation):
        user = User.objects.create_user("ann")
        begun = []

        def erase(execute, sql, params, many, context):
            result = execute(sql, params, many, context)
            if '"id"' in sql.replace("`", '"') and not begun:
                begun.append(sql)
                talk.delete()
            return result

        with connection.execute_wrapper(erase):
            assert execution.perform(operation, Conversation.objects.all(), user.pk) == (0, [])

        assert not Conversation.objects.exists()
        assert not LogEntry.objects.exists()

    def test_confirming_many_takes_as_many_statements_as_one(self, support, django_assert_max_num_queries):
        talks = [conversation(U1, memory_id=f"talk {index}") for index in range(40)]

        with django_assert_max_num_queries(12) as captured:
            post_action(support, "clear_memory", talks)

        # The list, which Django makes as well, reads what untitled conversations begin with.
        assert sum("chatmemory_message" in query["sql"] for query in captured) == 1

    def test_totals_without_conversations_are_zero(self):
        assert wording.Totals.of(Conversation.objects.none()) == (0, 0, 0, 0)
        counted(U1)
        assert wording.Totals.of(Conversation.objects.all()) == (1, 1, 1, 4)
