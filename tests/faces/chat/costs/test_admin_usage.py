"""The admin's page of what calls of models used."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.urls import reverse

from chatmemory_django.chat.models import ModelCall
from chatmemory_django.messages import UserMessage
from tests.faces.admin.admin_site import EVERYTHING, conversation, staff

pytestmark = pytest.mark.django_db

URL = "/admin/chatmemory_chat/modelcall/"
DASH = "\N{EN DASH}"
HOSTILE = "<script>alert(1)</script>"


def call(**columns: object) -> ModelCall:
    values = {"purpose": "answer", "model": "m", "outcome": "completed", "input_tokens": 10, "output_tokens": 2}
    return ModelCall.objects.create(**{**values, **columns})


@pytest.fixture
def ann() -> User:
    return User.objects.create_user("ann")


@pytest.fixture
def viewer(client) -> User:
    user = staff("view_modelcall")
    client.force_login(user)
    return user


def shown(client, **query: object) -> str:
    response = client.get(URL, query)
    assert response.status_code == 200
    return response.content.decode()


def test_it_requires_its_permission(client):
    client.force_login(staff(*EVERYTHING))
    assert client.get(URL).status_code == 403
    assert "modelcall" not in client.get("/admin/").content.decode()

    client.force_login(staff("view_modelcall", name="viewer"))
    assert client.get(URL).status_code == 200
    assert reverse("admin:chatmemory_chat_modelcall_changelist") in client.get("/admin/").content.decode()


def test_it_shows_totals_by_model_purpose_and_owner(client, viewer, ann):
    call(owner=ann, cost="0.25", cached_input_tokens=4, cache_write_tokens=3,
         conversation=conversation(UserMessage("hi"), owner=ann))  # fmt: skip
    call(owner=ann, model="n", purpose="summary", input_tokens=1_234)
    call(model="n", input_tokens=None, output_tokens=None, outcome="failed")

    page = shown(client)

    cells = [re.sub(r"<[^>]+>", "", each) for each in re.findall(r"<t[hd].*?</t[hd]>", page)]
    rows = [cells[index : index + 9] for index, cell in enumerate(cells) if cell in {"m", "n", "ann", "Summary"}]
    assert rows == [
        ["n", "2", "1,234", "0", "0", "2", "0", "1", DASH],
        ["m", "1", "10", "4", "3", "2", "0", "0", "0.2500"],
        ["Summary", "1", "1,234", "0", "0", "2", "0", "0", DASH],
        ["ann", "2", "1,244", "4", "3", "4", "0", "0", "0.2500"],
    ]
    assert page.count('<rect class="cm-fill-user"') == 2  # a piece of the plot, and its key


def test_it_shows_one_owner(client, viewer, ann):
    call(owner=ann)
    call(model="of another")

    page = shown(client, owner=ann.pk)

    assert "of another" not in page
    assert "ann" in page
    for unknown in ("999", "no key", HOSTILE):
        page = shown(client, owner=unknown)
        assert "No model reported any tokens in this time." in page
        assert HOSTILE not in page
        assert "no key" not in page
        assert "All owners" in page  # it is not the page of everybody


def test_its_plot_has_a_bar_for_each_day(client, viewer):
    today = datetime.now(UTC)
    for days, model in ((0, "m"), (0, "n"), (3, "m"), (9, "m")):
        call(model=model, created_at=today - timedelta(days=days))

    for days, pieces in ((1, 2), (7, 3), (30, 4), (365, 4), ("x", 4), (10**9, 4)):
        page = shown(client, days=days)
        assert page.count('<rect class="cm-fill-user" x=') + page.count('<rect class="cm-fill-ai" x=') == pieces


def test_many_models_share_a_color(client, viewer):
    for number in range(9):
        call(model=f"model {number}", input_tokens=100 - number)

    page = shown(client)

    assert "Other models" in page
    assert page.count('<rect class="cm-fill-rest" x=') == 1


def test_names_are_escaped(client, viewer):
    call(model=HOSTILE, owner=User.objects.create_user("<b>bob</b>"))

    page = shown(client)

    assert HOSTILE not in page
    assert "<b>bob" not in page


def test_it_has_no_pages_of_single_calls(client, viewer):
    made = call()
    for name in ("change", "history"):
        assert client.get(reverse(f"admin:chatmemory_chat_modelcall_{name}", args=[made.pk])).status_code == 404
    assert client.get(f"{URL}add/").status_code == 403
    assert client.post(reverse("admin:chatmemory_chat_modelcall_delete", args=[made.pk])).status_code == 403


def test_it_reads_as_many_rows_as_it_shows(client, viewer, ann, django_assert_max_num_queries):
    for number in range(30):
        call(model=f"model {number}", owner=User.objects.create_user(f"user {number}"))

    with django_assert_max_num_queries(10):
        page = shown(client)

    assert page.count("user 1") <= 20


def test_labels_have_tables_of_their_own(client, viewer):
    call(labels={"tenant": "acme", "feature": "onboarding"})
    call(labels={"tenant": "<b>other"})
    call()

    page = shown(client)

    assert (
        page.index("By label: feature") < page.index("onboarding") < page.index("By label: tenant") < page.index("acme")
    )
    assert "&lt;b&gt;other" in page
    assert page.count("Without this label") == 2


def test_it_is_in_german(client, viewer, settings):
    settings.LANGUAGE_CODE = "de"
    call(purpose="title")

    page = shown(client)

    assert "Verbrauch" in page
    assert "Zweck" in page


def test_it_runs_no_scripts(client, viewer):
    call()
    page = shown(client).partition('<div class="cm"')[2]

    assert "<script" not in page
    assert "style=" not in page
