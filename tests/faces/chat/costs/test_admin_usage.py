"""The admin's page of what calls of models used."""

import re
from datetime import UTC, datetime, timedelta

import django
import pytest
from django.contrib.auth.models import User
from django.urls import reverse

from chatmemory_django.chat.costs.summing import sum_calls
from chatmemory_django.chat.models import ModelCall
from chatmemory_django.messages import UserMessage
from tests.faces.admin.admin_site import EVERYTHING, conversation, staff

pytestmark = pytest.mark.django_db

LIST = "/admin/chatmemory_chat/modelcall/"
URL = f"{LIST}usage/"
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
    rows = [cells[index : index + 11] for index, cell in enumerate(cells) if cell in {"m", "n", "ann", "Summary"}]
    assert rows == [
        ["n", "2", "1", "50.0 %", DASH, "1,234", "0", "0", "2", "0", "1"],
        ["m", "1", "0", "0.0 %", "0.2500", "10", "4", "3", "2", "0", "0"],
        ["Summary", "1", "0", "0.0 %", DASH, "1,234", "0", "0", "2", "0", "0"],
        ["ann", "2", "0", "0.0 %", "0.2500", "1,244", "4", "3", "4", "0", "0"],
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


def test_its_axes_are_labelled(client, viewer, settings):
    call(input_tokens=1_500, output_tokens=0)
    settings.CHATMEMORY = {**settings.CHATMEMORY, "CURRENCY": "EUR"}

    page = shown(client, days=7)

    ticks = re.findall(r"<span>([\d,]+)</span>", page.partition('class="cm-scale')[2].partition("</p>")[0])
    assert ticks == ["2,000", "1,000", "0"]
    axis = page.partition('class="cm-axis-text"')[2].partition("</p>")[0]
    assert axis.count("<time") == 3
    [bar] = re.findall(r'<rect class="cm-fill-user" x="[\d.]+" y="([\d.]+)" width="[\d.]+" height="([\d.]+)"', page)
    assert bar == ("30.00", "90.00")  # 1,500 of 2,000
    assert "1,500 tokens, up to 1,500 on a day" in page
    assert "Cost (EUR)" in page


def test_it_has_rates_by_day_and_by_conversation(client, viewer, ann):
    talk = conversation(UserMessage("hi"), owner=ann, memory_id="shop-7")
    call(owner=ann, conversation=talk, cost="0.5")
    call(owner=ann, conversation=talk, outcome="failed", error="RateLimitError")
    call(owner=ann, conversation=talk, created_at=datetime.now(UTC) - timedelta(days=60))

    by_day = shown(client).partition("<h2>By day</h2>")[2].partition("</table>")[0]
    by_conversation = shown(client).partition("<h2>By conversation</h2>")[2].partition("</table>")[0]

    assert re.findall(r"[\d.]+ %", by_day) == re.findall(r"[\d.]+ %", by_conversation) == ["50.0 %"]
    assert f'href="{reverse("admin:chatmemory_conversation_changelist")}?q=shop-7"' in by_conversation
    assert "By conversation" not in shown(client, days=365)  # of all owners, each call would be read
    assert "By conversation" in shown(client, days=365, owner=ann.pk)


def test_what_failed_is_in_the_sums_of_past_days(client, viewer, ann):
    for days in (1, 40, 41):
        call(owner=ann, outcome="failed", created_at=datetime.now(UTC) - timedelta(days=days))
        call(owner=ann, created_at=datetime.now(UTC) - timedelta(days=days))
    before = shown(client, days=90)
    sum_calls()
    ModelCall.objects.all().delete()

    assert re.findall(r"[\d.]+ %", before)[:4] == ["50.0 %"] * 4
    after = shown(client, days=90).partition("<h2>By owner</h2>")[2].partition("</table>")[0]
    assert re.findall(r"<td>(\d+)</td>", after)[:2] == ["6", "3"]


def test_menu_list_and_page_are_named_alike(client, viewer):
    page = shown(client)

    crumbs = re.search(r'<(?:ol|div) class="breadcrumbs">.*?</(?:ol|div)>', page, re.DOTALL).group()
    words = re.sub(r"<[^>]+>", " ", crumbs).replace("&rsaquo;", " ").split()  # until Django 6.1, between two of them
    assert words == ["Home", "Chat", "Model", "calls", "Usage"]
    assert f'href="{LIST}"' in crumbs
    if django.VERSION >= (6, 1):
        assert crumbs.startswith("<ol")
        assert '<li aria-current="page">Usage</li>' in crumbs
    assert f'href="{URL}"' in client.get(LIST).content.decode()


class TestList:
    def test_it_has_a_row_for_each_call(self, client, viewer, ann, settings):
        settings.CHATMEMORY = {**settings.CHATMEMORY, "CURRENCY": "USD"}
        talk = conversation(UserMessage("hi"), owner=ann, memory_id="shop-7", title="Secret")
        call(owner=ann, conversation=talk, seconds=1.25, cost="0.0123")
        call(outcome="failed", error="RateLimitError", model=HOSTILE, input_tokens=None, output_tokens=None)

        page = client.get(LIST).content.decode()

        table = page.partition('id="result_list"')[2].partition("</table>")[0]
        assert table.count("<tr") == 3
        for text in ("1.25", "0.0123 USD", "shop-7", ">ann<", "RateLimitError", "Failed"):
            assert text in table
        assert reverse("admin:chatmemory_conversation_change", args=[talk.pk]) in table
        assert "Secret" not in page
        assert HOSTILE not in page

    @pytest.mark.parametrize(
        ("query", "models"),
        [
            ({}, {"a", "b", "c"}),
            ({"outcome__exact": "failed"}, {"b"}),
            ({"error": "RateLimitError"}, {"b"}),
            ({"purpose__exact": "title"}, {"c"}),
            ({"model": "a"}, {"a"}),
            ({"model": "\0"}, set()),
            ({"owner": "ann"}, {"a"}),
            ({"days": "7"}, {"a", "b"}),
            ({"conversation": "0"}, set()),
        ],
    )
    def test_its_filters(self, client, viewer, ann, query, models):
        call(model="a", owner=ann)
        call(model="b", outcome="failed", error="RateLimitError")
        call(model="c", purpose="title", created_at=datetime.now(UTC) - timedelta(days=8))

        response = client.get(LIST, query)

        assert {each.model for each in response.context["cl"].result_list} == models

    def test_a_key_that_is_too_large_is_no_error(self, client, viewer):
        assert client.get(LIST, {"conversation": "9" * 20}, follow=True).status_code == 200

    def test_it_reads_a_page_in_a_few_statements(self, client, viewer, django_assert_max_num_queries):
        for number in range(20):
            owner = User.objects.create_user(f"user {number}")
            call(owner=owner, conversation=conversation(UserMessage("hi"), owner=owner, memory_id=str(number)))

        with django_assert_max_num_queries(8):
            assert client.get(LIST).content.decode().count("user 1") >= 11


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
    assert client.get(f"{LIST}add/").status_code == 403
    assert client.post(reverse("admin:chatmemory_chat_modelcall_delete", args=[made.pk])).status_code == 403


def test_it_reads_as_many_rows_as_it_shows(client, viewer, ann, django_assert_max_num_queries):
    for number in range(30):
        call(model=f"model {number}", owner=User.objects.create_user(f"user {number}"))

    with django_assert_max_num_queries(12):
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
