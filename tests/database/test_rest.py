"""What the REST API leaves to the database: filters, order, pages, sums, and requests at the same time."""

import datetime
import threading

import pytest
from django.contrib.auth.models import Permission
from django.db import connection, connections
from django.utils import timezone
from rest_framework.test import APIClient

from chatmemory_django.chat.models import ModelCall
from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation
from tests.faces.rest.conftest import (
    HI,
    ROOT,
    USAGE,
    adding,
    api,
    begin,
    client_of,
    person,
    sequences,
    small_window,
)
from tests.faces.rest.test_conversations import listed
from tests.faces.rest.test_messages import post, texts
from tests.faces.rest.test_pages import begin_all, walked

__all__ = ["api", "begin", "client_of", "person", "small_window"]  # fixtures

pytestmark = pytest.mark.django_db


class TestList:
    def test_begins_with_the_latest_activity(self, api, begin):
        for name in "abc":
            begin(name, UserMessage("hi"))

        api.post(f"{ROOT}b/messages/", adding(HI), format="json")

        assert listed(api) == ["b", "c", "a"]

    @pytest.mark.parametrize(
        ("ordering", "names"),
        [
            ("-updated_at", ["c", "b", "a"]),
            ("updated_at", ["a", "b", "c"]),
            ("created_at", ["a", "b", "c"]),
            ("-is_pinned", ["a", "c", "b"]),
            ("-is_pinned,-updated_at", ["a", "c", "b"]),
            ("-is_pinned,updated_at", ["a", "b", "c"]),
            ("is_pinned", ["c", "b", "a"]),
        ],
    )
    def test_can_be_ordered_differently(self, api, begin, ordering, names):
        for name in "abc":
            begin(name)
        Conversation.objects.filter(memory_id="a").update(is_pinned=True)

        assert listed(api, ordering=ordering) == names

    @pytest.mark.parametrize(
        ("query", "found"),
        [
            ({"title": "PARCEL"}, ["a"]),
            ({"title": "%"}, []),
            ({"title": "null"}, []),
            ({"metadata": "topic:travel"}, ["b"]),
            ({"metadata": "topic:other"}, []),
            ({"metadata": "nothing:travel"}, []),
            ({"metadata": "topic:"}, []),
            ({"metadata": "url:https://x"}, ["b"]),
            ({"metadata": "stars:5"}, ["b"]),
            ({"metadata": "stars:5.0"}, ["b"]),
            ({"metadata": "stars:50"}, []),
            ({"metadata": "read:true"}, ["b"]),
            ({"metadata": "read:1"}, []),
            ({"metadata": "nobody:null"}, []),
            ({"metadata": "7:seven"}, ["b"]),
            ({"metadata": 'a"]-.b:c'}, ["b"]),
            ({"metadata": "a__contains:b"}, []),
            ({"metadata": "stadt:Zürich"}, ["b"]),
            ({"metadata": "stadt:zürich"}, []),
            ({"search": "Lisbon"}, ["b"]),
            ({"search": "parcel"}, ["a"]),
            ({"search": "nowhere"}, []),
            ({"active_since": "2026-01-01T00:00:00Z"}, ["b"]),
            ({"idle_since": "2026-01-01T00:00:00+02:00"}, ["a"]),
            ({"idle_since": "0001-01-01T00:00:00Z"}, []),
            ({"active_since": "9999-12-31T23:59:59Z"}, []),
            ({"is_pinned": "true"}, ["b"]),
            ({"is_pinned": "0"}, ["a"]),
            ({"is_archived": "True"}, ["a"]),
            ({"assistant": "support"}, ["b"]),
            ({"assistant": "Support"}, []),
            ({"title": "a", "search": "lisbon", "metadata": "topic:travel"}, ["b"]),
        ],
    )
    def test_can_be_filtered(self, api, begin, query, found):
        begin("a", UserMessage("hi"))
        begin("b", UserMessage("a week in Lisbon"))
        long_ago = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
        metadata = {"topic": "travel", "stars": 5, "read": True, "nobody": None, "7": "seven", 'a"]-.b': "c",
                    "stadt": "Zürich", "url": "https://x"}  # fmt: skip
        Conversation.objects.filter(memory_id="a").update(title="My parcel", updated_at=long_ago, is_archived=True)
        Conversation.objects.filter(memory_id="b").update(
            title="a", metadata=metadata, is_pinned=True, assistant="support"
        )

        assert listed(api, **query) == found

    @pytest.mark.slow
    @pytest.mark.parametrize("ordering", ["-updated_at", "-is_pinned"])
    def test_its_pages_of_more_than_a_thousand_with_equal_times_miss_nothing(self, api, person, ordering):
        begin_all(person, [(0, False, 0)] * 1_203)

        there, back = walked(api, f"{ROOT}?page_size=200&ordering={ordering}", "memory_id")

        assert len(there) == len(set(there)) == 1_203
        assert back == there


class TestUsage:
    @pytest.fixture
    def calls(self, begin, person) -> None:
        owner = person("owner")
        values = {"owner": owner, "purpose": "answer", "outcome": "completed", "output_tokens": 1}
        found = [(begin("d"), "m", 7, "0.5"), (begin("c"), "n", 3, None), (None, "n", 1, None)]
        for conversation, model, tokens, cost in found:
            ModelCall.objects.create(conversation=conversation, model=model, input_tokens=tokens, cost=cost, **values)
        ModelCall.objects.create(purpose="answer", outcome="completed", input_tokens=100, model="anonymous")

    def usage(self, api, **query) -> list[tuple]:
        response = api.get(USAGE, query)
        assert response.status_code == 200, response.content
        return [(each["key"], each["calls"], each["input"], each["cost"]) for each in response.json()["results"]]

    def test_by_day(self, api, calls):
        yesterday = timezone.now() - datetime.timedelta(days=1)
        ModelCall.objects.filter(model="m").update(created_at=yesterday)

        assert self.usage(api) == [
            (timezone.now().astimezone(datetime.UTC).date().isoformat(), 2, 4, None),
            (yesterday.astimezone(datetime.UTC).date().isoformat(), 1, 7, "0.5000000000"),
        ]

    def test_by_conversation(self, api, calls):
        assert self.usage(api, by="conversation") == [
            ("d", 1, 7, "0.5000000000"), ("c", 1, 3, None), (None, 1, 1, None)
        ]  # fmt: skip

    def test_by_model_user_and_purpose(self, api, calls, person):
        assert [row[:3] for row in self.usage(api, by="model")] == [("m", 1, 7), ("n", 2, 4)]
        assert [row[:3] for row in self.usage(api, by="user")] == [(str(person("owner").pk), 3, 11)]
        assert [row[:3] for row in self.usage(api, by="purpose")] == [("answer", 3, 11)]

    def test_within_a_time(self, api, calls):
        now = timezone.now()
        ModelCall.objects.filter(model="n").update(created_at=now - datetime.timedelta(days=40))

        assert sum(calls for _, calls, *_ in self.usage(api)) == 1
        assert sum(calls for _, calls, *_ in self.usage(api, since="2000-01-01T00:00:00Z")) == 3
        assert self.usage(api, until="2000-01-01T00:00:00Z") == []

    def test_its_pages_are_complete_whatever_is_called_in_the_meantime(self, api, calls, settings):
        settings.CHATMEMORY["REST"]["MAX_PAGE_SIZE"] = 1
        found, url = [], f"{USAGE}?by=conversation&page_size=1000"
        while url:
            page = api.get(url).json()
            found += [row["key"] for row in page["results"]]
            assert len(page["results"]) == page["page_size"] == 1
            new = Conversation.objects.create()
            ModelCall.objects.create(
                owner=Conversation.objects.get(memory_id="c").owner,
                conversation=new,
                purpose="answer",
                input_tokens=10**6,
            )
            url = page["next"]

        assert found == ["d", "c", None]

    def test_staff_with_the_permission_see_those_of_others(self, client_of, calls, person):
        staff = person("staff who see")
        client = APIClient()
        client.force_authenticate(staff)
        assert self.usage(client, owner="*", by="model") == []
        staff.user_permissions.add(Permission.objects.get(codename="view_modelcall"))
        client.force_authenticate(type(staff).objects.get(pk=staff.pk))

        owner = person("owner").pk
        assert [row[0] for row in self.usage(client, owner="*", by="model")] == ["anonymous", "m", "n"]
        assert [row[0] for row in self.usage(client, owner=owner, by="model")] == ["m", "n"]
        assert self.usage(client, owner="no key", by="model") == self.usage(client, by="model") == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(
    connection.vendor == "sqlite",
    reason="SQLite's test database is in memory, where threads cannot race",
)
def test_concurrent_retries_store_once(begin, person):
    begin("c")
    owner = person("owner")
    responses, barrier = [], threading.Barrier(6)

    def race() -> None:
        client = APIClient()
        client.force_authenticate(owner)
        barrier.wait()
        responses.append(post(client, adding(HI, HI), Idempotency_Key="k"))
        connections.close_all()

    threads = [threading.Thread(target=race) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [sequences(each) for each in responses] == [[1, 2]] * 6
    assert texts() == ["hi", "hi"]
