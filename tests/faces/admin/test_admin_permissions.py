"""Permissions in the admin: every page, button and action."""

import re

import pytest
from django.contrib import admin
from django.contrib.auth.models import User

from chatmemory_django.messages import AiMessage, SystemMessage, ToolExecutionRequest, ToolExecutionResultMessage
from chatmemory_django.messages import UserMessage as User_
from chatmemory_django.models import Conversation, Message
from tests.faces.admin.admin_site import EVERYTHING, MESSAGE_WINDOW, conversation, page, post_action, staff

pytestmark = pytest.mark.django_db

SECRET = "the launch code is 0000"
CALL = ToolExecutionRequest(id="1", name="secret_tool", arguments='{"secret": "argument"}')

OPERATIONS = {
    "clear": ("clear_conversation", "clear_memory"),
    "recount": ("recount_conversation", "recount_tokens"),
    "export": ("export_conversation", "export_conversations"),
    "delete": ("delete_conversation", "delete_selected"),
}


@pytest.fixture
def talk():
    message = User_(SECRET, name="secret_name", attributes={"secret": "attribute"})
    return conversation(
        message,
        AiMessage(SECRET, SECRET, [CALL]),
        ToolExecutionResultMessage.from_request(CALL, SECRET),
        title="A talk",
    )


def state(talk):
    talk = Conversation.objects.filter(pk=talk.pk).values().first()
    return talk, list(Message.objects.values_list("sequence", "token_count"))


def buttons(html: str) -> set[str]:
    tools = html[html.index('class="cm-tools"') :].partition("</ul>")[0]
    return set(re.findall(r'/(\w+)/"', tools))


class TestPages:
    PAGES = (
        *("changelist", "change", "history", "message", "json", "message_openai"),
        *("openai", "clear", "delete", "export", "recount"),
    )

    def address(self, name, talk):
        if name == "changelist":
            return page(name)
        return page(name, talk.pk, 1) if name in {"message", "json", "message_openai"} else page(name, talk.pk)

    @pytest.mark.parametrize("name", PAGES)
    def test_staff_with_every_permission_see_everything(self, client, talk, name):
        client.force_login(staff(*EVERYTHING))

        assert client.get(self.address(name, talk)).status_code == 200

    @pytest.mark.parametrize("name", ["change", "clear", "delete", "export", "recount"])
    def test_a_deleted_conversation_redirects_to_the_list(self, client, name):
        client.force_login(staff(*EVERYTHING))

        response = client.get(page(name, 4711), follow=True)

        assert response.redirect_chain == [(page("changelist"), 302)]
        assert "may have been erased" in response.content.decode()

    @pytest.mark.parametrize("name", ["message", "json", "message_openai"])
    def test_an_unknown_message_is_not_found(self, client, talk, name):
        client.force_login(staff(*EVERYTHING))

        assert client.get(page(name, talk.pk, 99)).status_code == 404
        assert client.get(page(name, 4711, 1)).status_code == 404

    def test_even_superusers_cannot_add_or_edit(self, client, talk):
        client.force_login(User.objects.create_superuser("root"))
        before = state(talk)

        assert client.get(page("add")).status_code == 403
        assert client.post(page("change", talk.pk), {"title": "x"}).status_code == 403
        assert state(talk) == before

    def test_messages_have_no_admin_of_their_own(self):
        assert not admin.site.is_registered(Message)


class TestText:
    """Permission to list conversations does not include permission to read messages."""

    WORDS = (SECRET, "secret_tool", "argument", "secret_name", "attribute")

    def test_users_without_permission_to_read_see_counts_but_no_text(self, client, talk):
        client.force_login(staff(*(codename for codename in EVERYTHING if codename != "view_message_text")))

        html = client.get(page("change", talk.pk)).content.decode()

        assert "A talk" not in html
        assert html.count("<article") == 3
        assert "You can see that there are messages, but you do not have permission to read them." in html
        assert not any(word in html for word in self.WORDS)

    def test_users_with_permission_to_read_see_the_text(self, client, talk):
        client.force_login(staff("view_conversation", "view_message_text"))

        html = client.get(page("change", talk.pk)).content.decode()

        assert all(word in html for word in self.WORDS)

    def test_texts_are_not_queried_without_permission_to_read(
        self, client, talk, settings, django_assert_max_num_queries
    ):
        settings.CHATMEMORY = MESSAGE_WINDOW
        client.force_login(staff("view_conversation"))

        with django_assert_max_num_queries(11) as captured:  # one of them: whether calls wait
            client.get(page("change", talk.pk), {"q": SECRET})

        assert not any('"payload"' in query["sql"] or '"text"' in query["sql"] for query in captured)

    @pytest.mark.parametrize("name", ["message", "json", "message_openai"])
    def test_the_page_of_a_message_requires_permission_to_read(self, client, talk, name):
        client.force_login(staff("view_conversation", "export_conversation"))

        response = client.get(page(name, talk.pk, 1))

        assert response.status_code == 403
        assert SECRET not in response.content.decode()

    def test_downloads_require_permission_to_read(self, client, talk):
        client.force_login(staff("view_conversation", "export_conversation"))

        assert client.post(page("export", talk.pk), {"confirmed": "export"}).status_code == 403
        assert client.get(page("openai", talk.pk)).status_code == 403
        assert not {"export", "openai"} & buttons(client.get(page("change", talk.pk)).content.decode())


class TestOperations:
    @pytest.mark.parametrize("name", OPERATIONS)
    def test_users_without_permission_see_no_button_and_cannot_post(self, client, talk, name):
        codename, action = OPERATIONS[name]
        client.force_login(staff(*(each for each in EVERYTHING if each != codename)))
        before = state(talk)

        assert buttons(client.get(page("change", talk.pk)).content.decode()) == {*OPERATIONS, "openai", "history"} - {
            name
        }
        assert client.get(page(name, talk.pk)).status_code == 403
        assert client.post(page(name, talk.pk), {"confirmed": name}).status_code == 403
        assert f'value="{action}"' not in client.get(page("changelist")).content.decode()
        assert post_action(client, action, [talk], confirmed=name).status_code == 302
        assert state(talk) == before

    @pytest.mark.parametrize("name", OPERATIONS)
    def test_a_single_permission_shows_a_single_button(self, client, talk, name):
        codename, action = OPERATIONS[name]
        client.force_login(staff("view_conversation", "view_message_text", codename))

        assert buttons(client.get(page("change", talk.pk)).content.decode()) == {name, "openai", "history"}
        assert client.get(page(name, talk.pk)).status_code == 200
        actions = re.findall(r'<option value="(\w+)"', client.get(page("changelist")).content.decode())
        assert actions == [action]

    def test_users_without_permissions_are_offered_nothing(self, client, talk):
        client.force_login(staff("view_conversation"))

        assert "<option" not in client.get(page("changelist")).content.decode()

    @pytest.mark.parametrize("name", OPERATIONS)
    def test_requests_from_other_sites_are_rejected(self, talk, name, client):
        client.force_login(staff(*EVERYTHING))
        strict = type(client)(enforce_csrf_checks=True)
        strict.cookies = client.cookies
        before = state(talk)

        assert strict.post(page(name, talk.pk), {"confirmed": name}).status_code == 403
        assert state(talk) == before

    def test_deleting_an_owner_requires_permission_to_erase(self, client):
        ann = User.objects.create_user("ann")
        conversation(User_("Hi"), owner=ann, memory_id="anns")
        root = staff("view_conversation", name="clerk")
        root.user_permissions.add(*_permissions_on_users())
        client.force_login(root)

        html = client.get(f"/admin/auth/user/{ann.pk}/delete/").content.decode()

        assert "have permission to delete the following types of objects" in html


def _permissions_on_users():
    from django.contrib.auth.models import Permission

    return Permission.objects.filter(content_type__app_label="auth", content_type__model="user")


def test_system_messages_require_permission_to_read(client):
    talk = conversation(SystemMessage(SECRET))
    client.force_login(staff("view_conversation"))

    assert SECRET not in client.get(page("change", talk.pk)).content.decode()
