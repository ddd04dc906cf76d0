"""Branches: rewound, switched, edited, found again; messages taken out."""

import pytest

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
from chatmemory_django.rest.access import AccessPolicy
from tests.rest.conftest import HI, MEMORY, MESSAGES, PROMPT, ROOT, paths, said, sequences, statements, text, users

REWIND, SWITCH, POP, FORK = f"{MEMORY}rewind/", f"{MEMORY}switch/", f"{MEMORY}pop/", f"{ROOT}c/fork/"

HELLO, HEY, GOOD_DAY = AiMessage("hello"), AiMessage("hey"), AiMessage("good day")

pytestmark = pytest.mark.django_db


@pytest.fixture
def answered(begin) -> Conversation:
    """A conversation with three answers to one question, of which the last is in use."""
    conversation = begin("c", UserMessage("hi"), HELLO)
    memory = get_chat_memory("c")
    for answer in (HEY, GOOD_DAY):
        memory.add(answer, after=1)
    conversation.refresh_from_db()
    return conversation


@pytest.fixture
def remover(client_of):
    """The client of the owner, who may take messages out."""
    return client_of("owner who removes")


def post(client, where: str, body: object = None, **headers: str):
    return client.post(where, body, format="json", headers=headers)


def alternatives(client, sequence: int, **query: object) -> list[int]:
    return sequences(client.get(f"{MESSAGES}{sequence}/alternatives/", query))


def place(client, sequence: int) -> dict | None:
    return client.get(f"{MESSAGES}{sequence}/").json()["place"]


class TestReading:
    def test_shows_the_path_and_on_request_all_branches(self, api, answered):
        assert sequences(api.get(MESSAGES)) == [4, 1]
        assert sequences(api.get(MESSAGES, {"all_branches": "false"})) == [4, 1]
        assert sequences(api.get(MESSAGES, {"all_branches": "true"})) == [4, 3, 2, 1]

    def test_says_of_each_message_whether_it_is_on_the_path_and_in_memory(self, api, answered):
        shown = api.get(MESSAGES, {"all_branches": "true"}).json()["results"]

        assert [(each["sequence"], each["on_path"], each["in_memory"]) for each in shown] == [
            (4, True, True), (3, False, False), (2, False, False), (1, True, True)
        ]  # fmt: skip

    def test_says_which_of_how_many_a_message_is_and_what_to_switch_to(self, api, answered):
        first, second = api.get(MESSAGES, {"ordering": "sequence"}).json()["results"]

        assert first["place"] is None
        assert second["place"] == {"number": 3, "of": 3, "previous": 3, "next": None}
        assert place(api, 3) == {"number": 2, "of": 3, "previous": 2, "next": 4}
        assert place(api, 2) == {"number": 1, "of": 3, "previous": None, "next": 3}
        in_memory = api.get(MEMORY).json()["messages"]
        assert [each["place"] and each["place"]["number"] for each in in_memory] == [None, 3]

    def test_finds_and_narrows_on_all_branches(self, api, answered):
        everywhere = {"all_branches": "true"}

        assert sequences(api.get(MESSAGES, {"search": "HE"})) == []
        assert sequences(api.get(MESSAGES, {"search": "HE", **everywhere})) == [3, 2]
        assert sequences(api.get(MESSAGES, {"in_memory": "false"})) == []
        assert sequences(api.get(MESSAGES, {"in_memory": "false", **everywhere})) == [3, 2]
        assert sequences(api.get(MESSAGES, {"in_memory": "true", **everywhere})) == [4, 1]
        assert sequences(api.get(MESSAGES, {"before": "4", "type": "AI", **everywhere})) == [3, 2]

    def test_goes_by_pages(self, api, answered):
        first = api.get(MESSAGES, {"all_branches": "true", "page_size": 3})

        assert sequences(first) == [4, 3, 2]
        assert sequences(api.get(first.json()["next"])) == [1]

    @pytest.mark.parametrize("wrong", ["maybe", ""])
    def test_says_that_the_parameter_is_wrong(self, api, answered, wrong):
        response = api.get(MESSAGES, {"all_branches": wrong})

        assert response.status_code == 400
        assert paths(response) == ["?all_branches"]

    def test_takes_as_many_statements_for_many_branches_as_for_none(self, api, begin):
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
        assert (len(few), len(many)) == (5, 5)


class TestAlternatives:
    def test_are_what_else_was_said_in_the_place_of_a_message(self, api, answered):
        assert alternatives(api, 4) == [3, 2]
        assert alternatives(api, 2) == [4, 3]
        assert alternatives(api, 1) == []

    def test_go_by_pages(self, api, answered):
        first = api.get(f"{MESSAGES}4/alternatives/", {"page_size": 1})

        assert sequences(first) == [3]
        assert sequences(api.get(first.json()["next"])) == [2]

    def test_are_shown_as_messages_are(self, api, answered):
        [_, first] = api.get(f"{MESSAGES}4/alternatives/", {"as": "openai"}).json()["results"]

        assert first["message"] == {"role": "assistant", "content": "hello"}
        assert first["place"] == {"number": 1, "of": 3, "previous": None, "next": 3}

    def test_show_files_by_their_addresses(self, api, begin):
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
    def test_of_no_message_are_not_there(self, api, answered, sequence):
        assert api.get(f"{MESSAGES}{sequence}/alternatives/").status_code == 404

    def test_have_an_etag(self, api, answered):
        where = f"{MESSAGES}4/alternatives/"

        assert api.get(where, headers={"If-None-Match": api.get(where)["ETag"]}).status_code == 304


class TestWhatOneMayNotRead:
    @pytest.fixture
    def prompted(self, begin) -> Conversation:
        """Prompts in the place of what people and models say."""
        conversation = begin("c", UserMessage("hi"), HELLO)
        memory = get_chat_memory("c")
        for other in (SystemMessage("a secret"), HEY, SystemMessage("another secret")):
            memory.add(other, after=1)
        conversation.refresh_from_db()
        return conversation

    def test_is_neither_listed_nor_counted_among_alternatives(self, api, prompted):
        assert alternatives(api, 2) == [4]
        assert place(api, 2) == {"number": 1, "of": 2, "previous": None, "next": 4}
        assert place(api, 4) == {"number": 2, "of": 2, "previous": 2, "next": None}

    def test_has_no_place_but_keeps_its_sequence(self, api, prompted):
        shown = api.get(f"{MESSAGES}3/").json()

        assert (shown["sequence"], shown["message"], shown["metadata"], shown["place"]) == (3, None, None, None)
        assert "secret" not in api.get(MESSAGES, {"all_branches": "true"}).content.decode()

    def test_is_listed_and_counted_for_who_may(self, client_of, prompted):
        staff = client_of("staff who read")

        assert alternatives(staff, 2) == [5, 4, 3]
        assert place(staff, 4) == {"number": 3, "of": 4, "previous": 3, "next": 5}

    def test_is_not_found_on_any_branch(self, api, prompted):
        assert sequences(api.get(MESSAGES, {"search": "secret", "all_branches": "true"})) == []

    def test_of_others_is_not_there_for_staff_who_only_see(self, client_of, answered):
        staff = client_of("staff who see")

        assert alternatives(staff, 4) == []
        assert place(staff, 4) is None

    def test_may_be_gone_back_to(self, api, prompted):
        response = post(api, REWIND, {"to": 3})

        assert response.json() == {"to": 3}
        assert sequences(api.get(MESSAGES)) == [3, 1]


class TestRewinding:
    def test_goes_on_from_a_message(self, api, begin):
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

    def test_begins_anew_at_0(self, api, begin):
        begin("c", *users(1, 2))

        assert post(api, REWIND, {"to": 0}).json() == {"to": 0}
        assert sequences(api.get(MESSAGES)) == []
        assert sequences(post(api, MESSAGES, said(HI))) == [3]


class TestSwitching:
    def test_goes_on_from_the_newest_message_of_a_branch(self, api, answered):
        post(api, MESSAGES, said(text("and?")))

        assert post(api, SWITCH, {"to": 2}).json() == {"to": 2}
        assert sequences(api.get(MESSAGES)) == [2, 1]

        response = post(api, SWITCH, {"to": 4})

        assert response.json() == {"to": 5}
        assert sequences(api.get(MESSAGES)) == [5, 4, 1]
        assert response["ETag"] == api.get(f"{ROOT}c/")["ETag"]


class TestBoth:
    @pytest.mark.parametrize("where", [REWIND, SWITCH])
    @pytest.mark.parametrize("to", [3, 2147483647])
    def test_find_no_message(self, api, begin, where, to):
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
    def test_say_what_is_wrong(self, api, begin, where, body, path):
        begin("c", *users(1, 2))

        response = post(api, where, body)

        assert response.status_code == 400
        assert paths(response) == [path]

    @pytest.mark.parametrize("where", [REWIND, SWITCH])
    def test_take_a_whole_number_as_json_has_it(self, api, begin, where):
        begin("c", *users(1, 2))

        assert post(api, where, {"to": 2.0}).json() == {"to": 2}

    @pytest.mark.parametrize("where", [REWIND, SWITCH])
    def test_say_what_is_wrong_whatever_the_conversation_is_like(self, api, begin, where):
        begin("c", *users(1, 2))

        assert post(api, where, **{"If-Match": '"old"'}).status_code == 400

    @pytest.mark.parametrize("where", [REWIND, SWITCH])
    def test_do_nothing_to_a_conversation_that_has_changed(self, api, begin, where):
        begin("c", *users(1, 2))
        known = api.get(f"{ROOT}c/")["ETag"]
        get_chat_memory("c").add(UserMessage("3"))

        assert post(api, where, {"to": 1}, **{"If-Match": known}).status_code == 412
        assert sequences(api.get(MESSAGES)) == [3, 2, 1]
        assert post(api, where, {"to": 1}, **{"If-Match": api.get(f"{ROOT}c/")["ETag"]}).status_code == 200

    @pytest.mark.parametrize("where", [REWIND, SWITCH])
    def test_do_not_go_back_to_what_is_no_history(self, api, begin, where):
        begin("c", *users(1, 2))
        get_chat_memory("c").set([SystemMessage("a digest")])

        assert post(api, where, {"to": 3}).status_code == 404


class TestEditing:
    def test_says_something_else_in_the_place_of_a_message(self, api, begin):
        begin("c", *users(1, 2, 3))

        response = post(api, MESSAGES, {**said(text("two")), "after": 1})

        assert sequences(response) == [4]
        [stored] = response.json()["messages"]
        assert stored["on_path"] is True
        assert stored["in_memory"] is True
        assert stored["place"] == {"number": 2, "of": 2, "previous": 2, "next": None}
        assert sequences(api.get(MESSAGES)) == [4, 1]
        assert response["ETag"] == api.get(f"{ROOT}c/")["ETag"]

    def test_begins_anew_at_0(self, api, begin):
        begin("c", *users(1, 2))

        assert sequences(post(api, MESSAGES, {**said(HI), "after": 0})) == [3]
        assert sequences(api.get(MESSAGES)) == [3]

    def test_sent_again_does_not_go_back_again(self, api, begin):
        begin("c", *users(1, 2))
        edit = {**said(text("two")), "after": 1}
        first = post(api, MESSAGES, edit, **{"Idempotency-Key": "k"})
        get_chat_memory("c").add(HELLO)

        again = post(api, MESSAGES, edit, **{"Idempotency-Key": "k", "If-Match": '"old"'})

        assert sequences(again) == sequences(first) == [3]
        assert sequences(api.get(MESSAGES)) == [4, 3, 1]

    def test_finds_no_message(self, api, begin):
        begin("c", *users(1, 2))

        response = post(api, MESSAGES, {**said(HI), "after": 7})

        assert response.status_code == 404
        assert paths(response) == ["$.after"]
        assert Message.objects.count() == 2

    @pytest.mark.parametrize("after", ["1", -1, None, True, 2147483648])
    def test_says_what_is_wrong(self, api, begin, after):
        begin("c", *users(1, 2))

        response = post(api, MESSAGES, {**said(HI), "after": after})

        assert response.status_code == 400
        assert paths(response) == ["$.after"]

    def test_forges_nothing(self, api, begin):
        begin("c", *users(1, 2))

        assert post(api, MESSAGES, {**said(PROMPT), "after": 0}).status_code == 403
        assert Message.objects.count() == 2


class TestTakingOut:
    def test_of_a_message_leaves_no_trace_to_be_read(self, remover, begin):
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

    def test_takes_what_belongs_to_it_along_if_that_is_asked(self, remover, begin):
        call = AiMessage(tool_execution_requests=[ToolExecutionRequest("1", "t", "{}")])
        begin("c", UserMessage("hi"), call, ToolExecutionResultMessage("1", "t", "4"))

        assert remover.delete(f"{MESSAGES}3/?with_results=true").json() == {"removed": [2, 3]}
        assert sequences(remover.get(MESSAGES)) == [1]

    def test_does_nothing_to_a_conversation_that_has_changed(self, remover, begin):
        begin("c", *users(1, 2))

        assert remover.delete(f"{MESSAGES}1/", headers={"If-Match": '"old"'}).status_code == 412
        assert post(remover, POP, **{"If-Match": '"old"'}).status_code == 412
        assert sequences(remover.get(MESSAGES)) == [2, 1]

    def test_takes_no_other_parameters(self, remover, begin):
        begin("c", *users(1))

        response = remover.delete(f"{MESSAGES}1/?with_result=true")

        assert paths(response) == ["?with_result"]

    def test_of_what_is_in_the_memory_only(self, remover, begin):
        begin("c", *users(1))
        get_chat_memory("c").set(users(5, 6))

        assert remover.delete(f"{MESSAGES}2/").json() == {"removed": [2]}
        assert sequences(remover.get(MEMORY)) == [3]

    def test_of_the_newest_pops_one_after_the_other(self, remover, begin):
        begin("c", SystemMessage("be brief"), *users(2, 3))

        found = [post(remover, POP).json()["removed"] for _ in range(4)]

        assert found == [[3], [2], [1], []]
        assert sequences(remover.get(MESSAGES)) == []

    def test_is_not_for_owners_as_such(self, api, begin):
        begin("c", *users(1))

        for response in (api.delete(f"{MESSAGES}1/"), post(api, POP)):
            assert response.status_code == 403
        assert sequences(api.get(MESSAGES)) == [1]
        get_chat_memory("c").clear()
        assert post(api, POP).status_code == 403

    def test_may_be_allowed_for_what_people_said_themselves(self, api, begin, settings):
        settings.CHATMEMORY["REST"]["ACCESS_POLICY"] = f"{__name__}.OwnWords"
        call = AiMessage(tool_execution_requests=[ToolExecutionRequest("1", "t", "{}")])
        begin("c", UserMessage("hi"), call, ToolExecutionResultMessage("1", "t", "4"))
        before = list(Message.objects.values()), list(Conversation.objects.values())

        for where in (f"{MESSAGES}2/", f"{MESSAGES}3/?with_results=true"):
            assert api.delete(where).status_code == 403
        assert post(api, POP).status_code == 403
        assert (list(Message.objects.values()), list(Conversation.objects.values())) == before
        assert api.delete(f"{MESSAGES}1/").json() == {"removed": [1]}


class TestForking:
    def test_copies_the_path_and_the_memory_to_a_conversation_of_its_own(self, api, answered):
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

    def test_goes_through_a_message_of_any_branch(self, api, answered):
        where = post(api, FORK, {"through": 2}).headers["Location"]

        assert sequences(api.get(f"{where}messages/")) == [2, 1]

    def test_fills_the_memory_through_its_own_window(self, api, begin):
        begin("c", *users(1, 2, 3, 4, 5, 6))
        get_chat_memory("c").clear()
        get_chat_memory("c").add(UserMessage("7"))

        where = post(api, FORK, {"through": 5}).headers["Location"]

        assert sequences(api.get(f"{where}memory/")) == [3, 4, 5]

    def test_finds_no_message(self, api, begin):
        begin("c", *users(1))

        response = post(api, FORK, {"through": 2})

        assert response.status_code == 404
        assert paths(response) == ["$.through"]
        assert Conversation.objects.count() == 1

    def test_takes_a_memory_id_that_is_free(self, api, client_of, begin):
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

    def test_is_of_the_same_owner_whoever_makes_it(self, api, client_of, begin):
        begin("c", *users(1))

        made = post(client_of("staff who change"), FORK, {}).json()

        assert api.get(f"{ROOT}{made['memory_id']}/").status_code == 200
        assert client_of("other").get(f"{ROOT}{made['memory_id']}/").status_code == 404

    def test_does_nothing_to_a_conversation_that_has_changed(self, api, begin):
        begin("c", *users(1))

        assert post(api, FORK, {}, **{"If-Match": '"old"'}).status_code == 412
        assert Conversation.objects.count() == 1

    def test_counts_as_an_export(self, api, begin, settings):
        settings.CHATMEMORY["REST"]["THROTTLE_RATES"] = {"export": "1/min"}
        begin("c", *users(1))

        assert [post(api, FORK, {}).status_code for _ in range(2)] == [201, 429]


class OwnWords(AccessPolicy):
    """Whoever said something may take it back."""

    def removable_types(self, request):
        return {"USER"}


STATEMENTS = {REWIND: 8, SWITCH: 13, MESSAGES: 11}


@pytest.mark.parametrize(
    ("where", "body"), [(REWIND, {"to": 100}), (SWITCH, {"to": 102}), (MESSAGES, {**said(HI), "after": 100})]
)
@pytest.mark.parametrize("size", [300, 3_000])
def test_statements_do_not_grow_with_the_history(api, begin, where, body, size):
    begin("c", *[UserMessage("hi")] * size)
    get_chat_memory("c").add(HELLO, after=101)

    with statements() as run:
        assert post(api, where, body).status_code in {200, 201}

    assert len(run) == STATEMENTS[where], run
