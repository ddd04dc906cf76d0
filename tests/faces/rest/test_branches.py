"""Branches: rewinding, switching, editing, forking; removing messages."""

import pytest

from chatmemory_django.access import AccessPolicy
from chatmemory_django.messages import (
    AiMessage,
    Image,
    ImageContent,
    SystemMessage,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models import Conversation, Message
from chatmemory_django.provider import get_chat_memory
from tests.faces.rest.conftest import (
    HI,
    MEMORY,
    MESSAGES,
    PROMPT,
    ROOT,
    adding,
    paths,
    sequences,
    statements,
    text,
    users,
)

REWIND, SWITCH, POP, FORK = f"{MEMORY}rewind/", f"{MEMORY}switch/", f"{MEMORY}pop/", f"{ROOT}c/fork/"

HELLO, HEY, GOOD_DAY = AiMessage("hello"), AiMessage("hey"), AiMessage("good day")

pytestmark = pytest.mark.django_db


@pytest.fixture
def answered(begin) -> Conversation:
    """Create a conversation with three answers to one question, of which the last is in use."""
    conversation = begin("c", UserMessage("hi"), HELLO)
    memory = get_chat_memory("c")
    for answer in (HEY, GOOD_DAY):
        memory.add(answer, after=1)
    conversation.refresh_from_db()
    return conversation


@pytest.fixture
def remover(client_of):
    """Return a client of the owner, who may remove messages."""
    return client_of("owner who removes")


def post(client, where: str, body: object = None, **headers: str):
    return client.post(where, body, format="json", headers=headers)


def alternatives(client, sequence: int, **query: object) -> list[int]:
    return sequences(client.get(f"{MESSAGES}{sequence}/alternatives/", query))


def place(client, sequence: int) -> dict | None:
    return client.get(f"{MESSAGES}{sequence}/").json()["place"]


class TestReading:
    def test_lists_the_path_and_on_request_all_branches(self, api, answered):
        assert sequences(api.get(MESSAGES)) == [4, 1]
        assert sequences(api.get(MESSAGES, {"all_branches": "false"})) == [4, 1]
        assert sequences(api.get(MESSAGES, {"all_branches": "true"})) == [4, 3, 2, 1]

    def test_shows_of_each_message_whether_it_is_on_the_path_and_in_memory(self, api, answered):
        shown = api.get(MESSAGES, {"all_branches": "true"}).json()["results"]

        assert [(each["sequence"], each["on_path"], each["in_memory"]) for each in shown] == [
            (4, True, True), (3, False, False), (2, False, False), (1, True, True)
        ]  # fmt: skip

    def test_shows_the_number_of_alternatives_and_where_to_switch(self, api, answered):
        first, second = api.get(MESSAGES, {"ordering": "sequence"}).json()["results"]

        assert first["place"] is None
        assert second["place"] == {"number": 3, "of": 3, "previous": 3, "next": None}
        assert place(api, 3) == {"number": 2, "of": 3, "previous": 2, "next": 4}
        assert place(api, 2) == {"number": 1, "of": 3, "previous": None, "next": 3}
        in_memory = api.get(MEMORY).json()["messages"]
        assert [each["place"] and each["place"]["number"] for each in in_memory] == [None, 3]

    def test_searches_and_filters_all_branches(self, api, answered):
        everywhere = {"all_branches": "true"}

        assert sequences(api.get(MESSAGES, {"search": "HE"})) == []
        assert sequences(api.get(MESSAGES, {"search": "HE", **everywhere})) == [3, 2]
        assert sequences(api.get(MESSAGES, {"in_memory": "false"})) == []
        assert sequences(api.get(MESSAGES, {"in_memory": "false", **everywhere})) == [3, 2]
        assert sequences(api.get(MESSAGES, {"in_memory": "true", **everywhere})) == [4, 1]
        assert sequences(api.get(MESSAGES, {"before": "4", "type": "AI", **everywhere})) == [3, 2]

    def test_is_paginated(self, api, answered):
        first = api.get(MESSAGES, {"all_branches": "true", "page_size": 3})

        assert sequences(first) == [4, 3, 2]
        assert sequences(api.get(first.json()["next"])) == [1]

    @pytest.mark.parametrize("wrong", ["maybe", ""])
    def test_refuses_an_invalid_parameter(self, api, answered, wrong):
        response = api.get(MESSAGES, {"all_branches": wrong})

        assert response.status_code == 400
        assert paths(response) == ["?all_branches"]

    def test_takes_two_more_statements_with_any_number_of_branches(self, api, begin):
        conversation = begin("c", UserMessage("hi"), *[HELLO] * 2)
        with statements() as few:
            assert len(sequences(api.get(MESSAGES))) == 3
        conversation.messages.bulk_create(
            Message(conversation=conversation, sequence=n, parent_sequence=1, on_path=False, type="AI", text="hey")
            for n in range(4, 104)
        )
        with statements() as many:
            shown = api.get(MESSAGES, {"all_branches": "true", "page_size": 100}).json()["results"]

        assert shown[0]["place"] == {"number": 101, "of": 101, "previous": 102, "next": None}
        assert (len(few), len(many)) == (3, 5)


class TestAlternatives:
    def test_are_the_other_versions_of_a_message(self, api, answered):
        assert alternatives(api, 4) == [3, 2]
        assert alternatives(api, 2) == [4, 3]
        assert alternatives(api, 1) == []

    def test_are_paginated(self, api, answered):
        first = api.get(f"{MESSAGES}4/alternatives/", {"page_size": 1})

        assert sequences(first) == [3]
        assert sequences(api.get(first.json()["next"])) == [2]

    def test_have_the_format_of_messages(self, api, answered):
        [_, first] = api.get(f"{MESSAGES}4/alternatives/", {"as": "openai"}).json()["results"]

        assert first["message"] == {"role": "assistant", "content": "hello"}
        assert first["place"] == {"number": 1, "of": 3, "previous": None, "next": 3}

    def test_have_files_as_addresses(self, api, begin):
        picture = UserMessage([ImageContent(Image(base64_data="iVBORw0KGgo=", mime_type="image/png"))])
        begin("c", picture)
        get_chat_memory("c").add(UserMessage("hi"), after=0)

        [found] = api.get(f"{MESSAGES}2/alternatives/").json()["results"]

        where = found["message"]["contents"][0]["image"]["url"]
        assert where.endswith(f"{MESSAGES}1/media/0/")
        assert api.get(where).status_code == 200

    @pytest.mark.parametrize("query", [{"ordering": "sequence"}, {"search": "hi"}, {"all_branches": "true"}])
    def test_take_no_filters(self, api, answered, query):
        response = api.get(f"{MESSAGES}4/alternatives/", query)

        assert response.status_code == 400
        assert paths(response) == [f"?{next(iter(query))}"]

    @pytest.mark.parametrize("sequence", ["0", "5", "x", "99999999999999999999", "2147483648"])
    def test_of_a_missing_message_are_not_found(self, api, answered, sequence):
        assert api.get(f"{MESSAGES}{sequence}/alternatives/").status_code == 404

    def test_have_an_etag(self, api, answered):
        where = f"{MESSAGES}4/alternatives/"

        assert api.get(where, headers={"If-None-Match": api.get(where)["ETag"]}).status_code == 304


class TestHiddenAlternatives:
    @pytest.fixture
    def prompted(self, begin) -> Conversation:
        """Replace messages of users and models by system messages."""
        conversation = begin("c", UserMessage("hi"), HELLO)
        memory = get_chat_memory("c")
        for other in (SystemMessage("a secret"), HEY, SystemMessage("another secret")):
            memory.add(other, after=1)
        conversation.refresh_from_db()
        return conversation

    def test_are_neither_listed_nor_counted(self, api, prompted):
        assert alternatives(api, 2) == [4]
        assert place(api, 2) == {"number": 1, "of": 2, "previous": None, "next": 4}
        assert place(api, 4) == {"number": 2, "of": 2, "previous": 2, "next": None}

    def test_have_no_number_but_keep_their_sequence(self, api, prompted):
        shown = api.get(f"{MESSAGES}3/").json()

        assert (shown["sequence"], shown["message"], shown["metadata"], shown["place"]) == (3, None, None, None)
        assert "secret" not in api.get(MESSAGES, {"all_branches": "true"}).content.decode()

    def test_are_listed_and_counted_with_permission(self, client_of, prompted):
        staff = client_of("staff who read")

        assert alternatives(staff, 2) == [5, 4, 3]
        assert place(staff, 4) == {"number": 3, "of": 4, "previous": 3, "next": 5}

    def test_are_not_found_on_any_branch(self, api, prompted):
        assert sequences(api.get(MESSAGES, {"search": "secret", "all_branches": "true"})) == []

    def test_of_other_users_are_hidden_from_staff_with_view_permission(self, client_of, answered):
        staff = client_of("staff who see")

        assert alternatives(staff, 4) == []
        assert place(staff, 4) is None

    def test_can_be_rewound_to(self, api, prompted):
        response = post(api, REWIND, {"to": 3})

        assert response.json() == {"to": 3}
        assert sequences(api.get(MESSAGES)) == [3, 1]


class TestRewinding:
    def test_continues_from_a_message(self, api, begin):
        begin("c", *users(1, 2, 3))

        response = post(api, REWIND, {"to": 1})

        assert (response.status_code, response.json()) == (200, {"to": 1})
        assert sequences(api.get(MESSAGES)) == [1]
        assert sequences(api.get(MEMORY)) == [1]
        assert sequences(api.get(MESSAGES, {"all_branches": "true"})) == [3, 2, 1]
        assert response["ETag"] == api.get(f"{ROOT}c/")["ETag"]

    def test_fills_the_memory_again(self, api, begin):
        begin("c", *users(1, 2, 3, 4, 5))

        post(api, REWIND, {"to": 2})

        assert sequences(api.get(MEMORY)) == [1, 2]

    def test_to_0_begins_a_new_branch(self, api, begin):
        begin("c", *users(1, 2))

        assert post(api, REWIND, {"to": 0}).json() == {"to": 0}
        assert sequences(api.get(MESSAGES)) == []
        assert sequences(post(api, MESSAGES, adding(HI))) == [3]


class TestSwitching:
    def test_continues_from_the_newest_message_of_a_branch(self, api, answered):
        post(api, MESSAGES, adding(text("and?")))

        assert post(api, SWITCH, {"to": 2}).json() == {"to": 2}
        assert sequences(api.get(MESSAGES)) == [2, 1]

        response = post(api, SWITCH, {"to": 4})

        assert response.json() == {"to": 5}
        assert sequences(api.get(MESSAGES)) == [5, 4, 1]
        assert response["ETag"] == api.get(f"{ROOT}c/")["ETag"]


class TestRewindingAndSwitching:
    @pytest.mark.parametrize("where", [REWIND, SWITCH])
    @pytest.mark.parametrize("to", [3, 2147483647])
    def test_to_a_missing_message_is_not_found(self, api, begin, where, to):
        begin("c", *users(1, 2))

        response = post(api, where, {"to": to})

        assert response.status_code == 404
        assert response.json()["errors"] == [
            {"path": "$.to", "code": "not_found", "detail": f"The history has no message {to}."}
        ]
        assert sequences(api.get(MESSAGES)) == [2, 1]

    @pytest.mark.parametrize("where", [REWIND, SWITCH])
    @pytest.mark.parametrize(
        ("body", "path"),
        [({}, "$.to"), ({"to": "1"}, "$.to"), ({"to": True}, "$.to"), ({"to": 1.5}, "$.to"), ({"to": -1}, "$.to"),
         ({"to": None}, "$.to"), ({"to": 2147483648}, "$.to"), ({"to": 10**40}, "$.to"), ([], "$"),
         ({"to": 1, "from": 2}, "$.from")],
    )  # fmt: skip
    def test_with_an_invalid_body_is_refused(self, api, begin, where, body, path):
        begin("c", *users(1, 2))

        response = post(api, where, body)

        assert response.status_code == 400
        assert paths(response) == [path]

    @pytest.mark.parametrize("where", [REWIND, SWITCH])
    def test_accept_any_json_form_of_a_whole_number(self, api, begin, where):
        begin("c", *users(1, 2))

        assert post(api, where, {"to": 2.0}).json() == {"to": 2}

    @pytest.mark.parametrize("where", [REWIND, SWITCH])
    def test_report_an_invalid_body_for_every_conversation(self, api, begin, where):
        begin("c", *users(1, 2))

        assert post(api, where, **{"If-Match": '"old"'}).status_code == 400

    @pytest.mark.parametrize("where", [REWIND, SWITCH])
    def test_leave_a_changed_conversation_alone(self, api, begin, where):
        begin("c", *users(1, 2))
        known = api.get(f"{ROOT}c/")["ETag"]
        get_chat_memory("c").add(UserMessage("3"))

        assert post(api, where, {"to": 1}, **{"If-Match": known}).status_code == 412
        assert sequences(api.get(MESSAGES)) == [3, 2, 1]
        assert post(api, where, {"to": 1}, **{"If-Match": api.get(f"{ROOT}c/")["ETag"]}).status_code == 200

    @pytest.mark.parametrize("where", [REWIND, SWITCH])
    def test_to_a_message_outside_the_history_is_not_found(self, api, begin, where):
        begin("c", *users(1, 2))
        get_chat_memory("c").set([SystemMessage("a digest")])

        assert post(api, where, {"to": 3}).status_code == 404


class TestEditing:
    def test_adds_another_version_of_a_message(self, api, begin):
        begin("c", *users(1, 2, 3))

        response = post(api, MESSAGES, {**adding(text("two")), "after": 1})

        assert sequences(response) == [4]
        [stored] = response.json()["messages"]
        assert stored["on_path"] is True
        assert stored["in_memory"] is True
        assert stored["place"] == {"number": 2, "of": 2, "previous": 2, "next": None}
        assert sequences(api.get(MESSAGES)) == [4, 1]
        assert response["ETag"] == api.get(f"{ROOT}c/")["ETag"]

    def test_of_the_first_message_begins_a_new_branch(self, api, begin):
        begin("c", *users(1, 2))

        assert sequences(post(api, MESSAGES, {**adding(HI), "after": 0})) == [3]
        assert sequences(api.get(MESSAGES)) == [3]

    def test_repeated_does_not_rewind_again(self, api, begin):
        begin("c", *users(1, 2))
        edit = {**adding(text("two")), "after": 1}
        first = post(api, MESSAGES, edit, **{"Idempotency-Key": "k"})
        get_chat_memory("c").add(HELLO)

        again = post(api, MESSAGES, edit, **{"Idempotency-Key": "k", "If-Match": '"old"'})

        assert sequences(again) == sequences(first) == [3]
        assert sequences(api.get(MESSAGES)) == [4, 3, 1]

    def test_a_missing_message_is_not_found(self, api, begin):
        begin("c", *users(1, 2))

        response = post(api, MESSAGES, {**adding(HI), "after": 7})

        assert response.status_code == 404
        assert paths(response) == ["$.after"]
        assert Message.objects.count() == 2

    @pytest.mark.parametrize("after", ["1", -1, None, True, 2147483648])
    def test_with_an_invalid_body_is_refused(self, api, begin, after):
        begin("c", *users(1, 2))

        response = post(api, MESSAGES, {**adding(HI), "after": after})

        assert response.status_code == 400
        assert paths(response) == ["$.after"]

    def test_cannot_forge_answers(self, api, begin):
        begin("c", *users(1, 2))

        assert post(api, MESSAGES, {**adding(PROMPT), "after": 0}).status_code == 403
        assert Message.objects.count() == 2


class TestRemoving:
    def test_a_message_deletes_its_text(self, remover, begin):
        begin("c", *users(1, 2, 3))

        response = remover.delete(f"{MESSAGES}2/")

        assert (response.status_code, response.json()) == (200, {"removed": [2]})
        assert response["ETag"] == remover.get(f"{ROOT}c/")["ETag"]
        assert sequences(remover.get(MESSAGES, {"all_branches": "true"})) == [3, 1]
        for where in (f"{MESSAGES}2/", f"{MESSAGES}2/media/0/", f"{MESSAGES}2/alternatives/"):
            assert remover.get(where).status_code == 404
        assert remover.delete(f"{MESSAGES}2/").status_code == 404
        assert post(remover, REWIND, {"to": 2}).status_code == 404
        feedback = {"metadata": {"feedback": 1}}
        assert remover.patch(f"{MESSAGES}2/", feedback, format="json").status_code == 404

    def test_a_message_with_its_results_on_request(self, remover, begin):
        call = AiMessage(tool_execution_requests=[ToolExecutionRequest("1", "t", "{}")])
        begin("c", UserMessage("hi"), call, ToolExecutionResultMessage("1", "t", "4"))

        assert remover.delete(f"{MESSAGES}3/?with_results=true").json() == {"removed": [2, 3]}
        assert sequences(remover.get(MESSAGES)) == [1]

    def test_from_a_changed_conversation_is_refused(self, remover, begin):
        begin("c", *users(1, 2))

        assert remover.delete(f"{MESSAGES}1/", headers={"If-Match": '"old"'}).status_code == 412
        assert post(remover, POP, **{"If-Match": '"old"'}).status_code == 412
        assert sequences(remover.get(MESSAGES)) == [2, 1]

    def test_takes_no_other_parameters(self, remover, begin):
        begin("c", *users(1))

        response = remover.delete(f"{MESSAGES}1/?with_result=true")

        assert paths(response) == ["?with_result"]

    def test_of_messages_in_memory_only(self, remover, begin):
        begin("c", *users(1))
        get_chat_memory("c").set(users(5, 6))

        assert remover.delete(f"{MESSAGES}2/").json() == {"removed": [2]}
        assert sequences(remover.get(MEMORY)) == [3]

    def test_the_newest_message_repeatedly_pops_one_after_another(self, remover, begin):
        begin("c", SystemMessage("be brief"), *users(2, 3))

        found = [post(remover, POP).json()["removed"] for _ in range(4)]

        assert found == [[3], [2], [1], []]
        assert sequences(remover.get(MESSAGES)) == []

    def test_is_refused_to_owners_without_permission(self, api, begin):
        begin("c", *users(1))

        for response in (api.delete(f"{MESSAGES}1/"), post(api, POP)):
            assert response.status_code == 403
        assert sequences(api.get(MESSAGES)) == [1]
        get_chat_memory("c").clear()
        assert post(api, POP).status_code == 403

    def test_can_be_allowed_for_the_users_own_messages(self, api, begin, settings):
        settings.CHATMEMORY["ACCESS_POLICY"] = f"{__name__}.OwnWords"
        call = AiMessage(tool_execution_requests=[ToolExecutionRequest("1", "t", "{}")])
        begin("c", UserMessage("hi"), call, ToolExecutionResultMessage("1", "t", "4"))
        before = list(Message.objects.values()), list(Conversation.objects.values())

        for where in (f"{MESSAGES}2/", f"{MESSAGES}3/?with_results=true"):
            assert api.delete(where).status_code == 403
        assert post(api, POP).status_code == 403
        assert (list(Message.objects.values()), list(Conversation.objects.values())) == before
        assert api.delete(f"{MESSAGES}1/").json() == {"removed": [1]}


class TestForking:
    def test_copies_the_path_and_the_memory_to_a_new_conversation(self, api, answered):
        Conversation.objects.update(title="My parcel", metadata={"a": 1})

        response = post(api, FORK, {})

        made = response.json()
        assert response.status_code == 201
        assert (made["title"], made["metadata"], made["preview"]) == ("My parcel", {"a": 1}, "good day")
        assert response["Location"] == f"http://testserver{ROOT}{made['memory_id']}/"
        assert response["ETag"] == api.get(response["Location"])["ETag"] != api.get(f"{ROOT}c/")["ETag"]
        assert sequences(api.get(f"{response['Location']}messages/?all_branches=true")) == [4, 1]
        assert sequences(api.get(f"{response['Location']}memory/")) == [1, 4]
        assert sequences(api.get(MESSAGES)) == [4, 1]

    def test_copies_up_to_a_message_of_any_branch(self, api, answered):
        where = post(api, FORK, {"through": 2}).headers["Location"]

        assert sequences(api.get(f"{where}messages/")) == [2, 1]

    def test_fills_the_memory_through_its_own_window(self, api, begin):
        begin("c", *users(1, 2, 3, 4, 5, 6))
        get_chat_memory("c").clear()
        get_chat_memory("c").add(UserMessage("7"))

        where = post(api, FORK, {"through": 5}).headers["Location"]

        assert sequences(api.get(f"{where}memory/")) == [3, 4, 5]

    def test_from_a_missing_message_is_not_found(self, api, begin):
        begin("c", *users(1))

        response = post(api, FORK, {"through": 2})

        assert response.status_code == 404
        assert paths(response) == ["$.through"]
        assert Conversation.objects.count() == 1

    def test_requires_an_unused_memory_id(self, api, client_of, begin):
        begin("c", *users(1))
        wanted = {"memory_id": "0192f5a0-7c1e-7b39-9d3c-2f6d1c0b7a11"}

        assert post(api, FORK, wanted).json()["memory_id"] == wanted["memory_id"]

        again = post(api, FORK, wanted)
        assert again.status_code == 409
        assert paths(again) == ["$.memory_id"]
        named = post(api, FORK, {"memory_id": "mine"})
        assert named.status_code == 400
        assert paths(named) == ["$.memory_id"]
        assert post(client_of("staff with every permission"), FORK, {"memory_id": "mine"}).status_code == 201

    def test_keeps_the_owner_for_any_caller(self, api, client_of, begin):
        begin("c", *users(1))

        made = post(client_of("staff who fork"), FORK, {}).json()

        assert api.get(f"{ROOT}{made['memory_id']}/").status_code == 200
        assert client_of("other").get(f"{ROOT}{made['memory_id']}/").status_code == 404

    def test_from_a_changed_conversation_is_refused(self, api, begin):
        begin("c", *users(1))

        assert post(api, FORK, {}, **{"If-Match": '"old"'}).status_code == 412
        assert Conversation.objects.count() == 1

    def test_has_a_rate_of_its_own(self, api, begin, settings):
        settings.CHATMEMORY["REST"]["THROTTLE_RATES"] = {"fork": "1/min", "export": "1/min"}
        begin("c", *users(1))

        assert [post(api, FORK, {}).status_code for _ in range(2)] == [201, 429]
        assert api.get(f"{ROOT}c/export/").status_code == 200


class OwnWords(AccessPolicy):
    """Users may remove their own messages."""

    def removable_types(self, request):
        return {"USER"}


STATEMENTS = {REWIND: 7, SWITCH: 13, MESSAGES: 11}


@pytest.mark.parametrize(
    ("where", "body"), [(REWIND, {"to": 100}), (SWITCH, {"to": 102}), (MESSAGES, {**adding(HI), "after": 100})]
)
@pytest.mark.parametrize("size", [300, 3_000])
def test_statements_do_not_grow_with_the_history(api, begin, where, body, size):
    begin("c", *[UserMessage("hi")] * size)
    get_chat_memory("c").add(HELLO, after=101)

    with statements() as run:
        assert post(api, where, body).status_code in {200, 201}

    assert len(run) == STATEMENTS[where], run
