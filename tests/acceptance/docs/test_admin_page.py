"""The subclass of ``ConversationAdmin`` on the page about the admin does what the page promises."""

import pytest
from django.contrib.auth.models import Group, User

from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.provider import get_chat_memory
from tests.acceptance.docs.pages import block_of, execute


@pytest.fixture
def support_admin():
    return execute(block_of("admin.md", "support"))["support"].get_model_admin(Conversation)


@pytest.mark.django_db
def test_its_list_has_the_conversations_and_the_filter(support_admin, rf):
    for memory_id in ("support-1", "private"):
        get_chat_memory(memory_id, owner=User.objects.create_user(memory_id)).add(UserMessage("Hello"))
    request = rf.get("/support/chatmemory/conversation/")
    request.user = User.objects.create_superuser("root")

    rows = support_admin.changelist_view(request).context_data["cl"].result_list

    assert [row.memory_id for row in rows] == ["support-1"]
    assert support_admin.lookup_allowed("owner__is_staff", "1", request)
    assert support_admin.get_object(request, str(Conversation.objects.get(memory_id="private").pk)) is None


@pytest.mark.django_db
def test_only_the_group_may_read(support_admin, rf):
    request = rf.get("/")
    request.user = User.objects.create_superuser("root")

    assert not support_admin.has_text_permission(request)
    request.user.groups.add(Group.objects.create(name="support"))
    assert support_admin.has_text_permission(request)
