"""Attacks on the chat over HTTP: none of them gets at another user's data, or takes the site down."""

import asyncio
import base64
import gc
import json
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.core.asgi import get_asgi_application
from django.core.cache import cache
from django.test import AsyncClient
from rest_framework.authtoken.models import Token

from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.runs.answers import Answers, answers
from chatmemory_django.messages import AiMessage, Image, ImageContent, TextContent, UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.provider import get_chat_memory
from tests.asgi import run, send
from tests.faces.chat.scripted import ScriptedModel
from tests.measuring import filled, measured
from tests.quick import mostly_slow

pytestmark = pytest.mark.django_db(transaction=True)

URL = "/api/chat"
MB = 1024 * 1024
PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)


@pytest.fixture(autouse=True)
def settings_of_the_chat(settings) -> dict[str, Any]:
    cache.clear()
    settings.CHATMEMORY = {"CHAT": {"ASSISTANT": Assistant(ScriptedModel("Yes."))}}
    return settings.CHATMEMORY["CHAT"]


@pytest.fixture
def ann() -> User:
    return User.objects.create_user("ann")


@pytest.fixture
def anns(ann) -> dict[str, str]:
    return bearer(ann)


@pytest.fixture
def bobs() -> dict[str, str]:
    return bearer(User.objects.create_user("bob"))


def bearer(user: User) -> dict[str, str]:
    return {"Authorization": f"Bearer {Token.objects.create(user=user).key}"}


def question(text: str = "Hi.", **others: Any) -> dict:
    return {"id": uuid4().hex[:16], "role": "user", "parts": [{"type": "text", "text": text}], **others}


async def post(headers: dict, body: Any, where: str = "") -> Any:
    content = body if isinstance(body, bytes) else json.dumps(body)
    return await AsyncClient().post(f"{URL}{where}", content, content_type="application/json", headers=headers)


async def get(headers: dict, where: str) -> Any:
    return await AsyncClient().get(f"{URL}{where}", headers=headers)


async def read(response: Any) -> str:
    assert response.status_code == 200, response.content
    return b"".join([piece async for piece in response.streaming_content]).decode()


LAST = '{"id":"c","messages":[{"role":"user","parts":[{"type":"text","text":"Hi."}],"metadata":'


def refused(headers: dict, body: bytes) -> dict[str, int]:
    """Send *body*, which is refused, and return what ``measured`` has found in the meantime."""

    async def test() -> dict[str, int]:
        application = get_asgi_application()
        await send(application, URL, headers, b"{}")
        with measured() as found:
            status, _ = await send(application, URL, headers, body)
        assert status == 400
        return found

    return run(test())


class TestLargeBodies:
    @pytest.mark.parametrize(
        ("begin", "part", "end"),
        mostly_slow(
            [
                ('{"id":"c","messages":[', "{},", '{"role":"x"}]}'),
                ('{"id":"c","messages":[', '{"":{}},', '{"role":"x"}]}'),
                ('{"id":"c","messages":[', "0,", "0]}"),
                ('{"id":"c","trigger":"regenerate-message","messages":[', '{"role":"assistant"},', "{}]}"),
                ('{"id":"c","message":{"role":"user","parts":[', '{"":1},', "{}]}}"),
                (LAST + "[", "{},", "{}]}]}"),
                (LAST + "[", '"",', '""]}]}'),
                (
                    '{"id":"c","message":{"role":"user","parts":[{"type":"file","mediaType":"image/png","url":"http://',
                    "a",
                    '"}]}}',
                ),
                ('{"id":"c","messages":[', '"" ', "]}"),
                ('{"id":"c","messages":["', '\\"', ""),
            ]
        ),
    )
    def test_a_refused_body_takes_five_times_its_size_and_is_freed_with_the_answer(self, anns, begin, part, end):
        body = filled(begin, part, end, 15 * MB)

        found = refused(anns, body)

        assert found["most"] / len(body) < 5.1
        assert found["left"] < MB

    @pytest.mark.parametrize(
        ("begin", "end"),
        mostly_slow(
            [
                (LAST + '[{},[],{"a":1},"', '"]}]}'),
                ('{"id":"c","message":{"role":"user","parts":[{"type":"text","text":"', '"}]}}'),
                (
                    '{"id":"c","message":{"role":"user","parts":[{"type":"file","mediaType":"image/png","url":"data:',
                    '"}]}}',
                ),
            ]
        ),
    )
    def test_a_text_that_python_keeps_in_four_bytes_for_each_character_is_not_copied(self, anns, begin, end):
        body = filled(begin, "aaaa" * 1000 + "\U0001f600", end, 15 * MB)

        found = refused(anns, body)

        assert found["most"] / len(body) < 6.1  # itself, the text, and the text while it is decoded
        assert found["left"] < MB

    def test_large_bodies_that_mean_something_are_accepted(self, anns):
        answer = {"id": "a", "role": "assistant", "metadata": {"usage": {"inputTokens": 1}, "model": "m"}}
        parts = [{"type": "step-start"}, {"type": "text", "text": "Yes, " * 80, "state": "done"}]
        chat = [question(f"{number} times?") | {"metadata": {"a": number}} for number in range(500)]
        with_answers = [each for one in chat for each in (one, {**answer, "parts": parts * 4})]

        async def test() -> None:
            await read(await post(anns, {"id": "c", "messages": [*with_answers, question("Last?")]}))
            png = f"data:image/png;base64,{base64.b64encode(PNG * 20_000).decode()}"
            file = {"type": "file", "mediaType": "image/png", "url": png}
            await read(await post(anns, {"id": "d", "message": question(parts=[file])}))
            await read(await post(anns, {"id": "e", "message": question("," * 100_000)}))

        run(test())


class TestLargeConversations:
    def image(self, size: int) -> ImageContent:
        return ImageContent(Image(base64_data=base64.b64encode(PNG + bytes(size)).decode(), mime_type="image/png"))

    @pytest.mark.slow
    def test_the_messages_have_addresses_in_place_of_files_and_few_are_in_memory(self, ann, anns):
        memory = get_chat_memory("c", owner=ann)
        for number in range(7):
            memory.add(UserMessage([TextContent(str(number)), self.image(3 * MB // 2)]), AiMessage("Nice."))

        async def test() -> None:
            await get(anns, "/c/messages")
            with measured() as found:
                response = await get(anns, "/c/messages")
            assert len(response.content) < 10_000
            assert found["most"] < 16 * MB
            shown = response.json()
            assert [each["parts"][0]["text"] for each in shown[::2]] == [str(number) for number in range(7)]
            file = shown[0]["parts"][1]
            assert file == {"type": "file", "mediaType": "image/png", "url": f"http://testserver{URL}/c/files/1/1"}

        run(test())

    def test_what_is_read_and_what_is_sent_is_bounded(self, ann, anns, settings, monkeypatch):
        memory = get_chat_memory("c", owner=ann)
        for number in range(6):
            memory.add(UserMessage(str(number) * 1000), AiMessage("Yes."))
        settings.CHATMEMORY["REST"] = {"MAX_PAGE_CHARACTERS": 3_000}

        async def shown() -> list[str]:
            found = (await get(anns, "/c/messages")).json()
            assert [each["role"] for each in found] == ["user", "assistant"] * (len(found) // 2)
            return [each["parts"][0]["text"][0] for each in found[::2]]

        assert run(shown()) == ["4", "5"]
        settings.CHATMEMORY["REST"] = {}
        assert run(shown()) == list("012345")
        monkeypatch.setattr("chatmemory_django.chat.http.listing.READ_CHARACTERS", 2_500)
        assert run(shown()) == ["4", "5"]

    def test_of_an_answer_with_too_many_rows_the_end_is_shown_under_its_id(self, ann, anns, settings):
        memory = get_chat_memory("c", owner=ann)
        memory.add(UserMessage("Earlier?"), AiMessage("Yes."), UserMessage("Count."))
        memory.add(*(AiMessage(str(number)) for number in range(9)))
        settings.CHATMEMORY["CHAT"]["MAX_MESSAGES"] = 3

        shown = run(get(anns, "/c/messages")).json()

        assert [each["id"] for each in shown] == ["message-3", "message-4"]
        texts = [part["text"] for part in shown[1]["parts"] if part["type"] == "text"]
        assert texts == ["0", "6", "7", "8"]

    @pytest.mark.slow
    def test_an_address_sent_many_times_does_not_load_as_many_files(self, ann, anns):
        get_chat_memory("c", owner=ann).add(UserMessage([self.image(2 * MB)]))
        part = {"type": "file", "mediaType": "image/png", "url": f"{URL}/c/files/1/0"}

        async def test() -> None:
            with measured() as found:
                response = await post(anns, {"id": "c", "message": question(parts=[part] * 20)})
            assert (response.status_code, found["most"] < 40 * MB) == (400, True)
            assert b"at most 4194304 are allowed" in response.content

        run(test())


class TestFiles:
    @pytest.fixture
    def conversation(self, ann) -> Conversation:
        image = ImageContent(Image(base64_data=base64.b64encode(PNG).decode(), mime_type="image/png"))
        page = ImageContent(Image(base64_data=base64.b64encode(b"<script>1</script>").decode(), mime_type="text/html"))
        get_chat_memory("c", owner=ann).add(UserMessage([image, TextContent("What?"), page]), AiMessage("A point."))
        return Conversation.objects.get()

    def test_are_served_with_the_detected_type_and_never_as_a_page(self, anns, conversation):
        image, page = (run(get(anns, f"/c/files/1/{index}")) for index in (0, 2))

        assert (image.content, image["Content-Type"]) == (PNG, "image/png")
        assert image["Content-Disposition"] == 'inline; filename="message-1-1.png"'
        assert page["Content-Type"] == "application/octet-stream"
        assert page["Content-Disposition"].startswith("attachment")
        for response in (image, page):
            assert response["X-Content-Type-Options"] == "nosniff"
            assert response["Content-Security-Policy"] == "default-src 'none'; sandbox"
            assert response["Cache-Control"] == "no-store"

    @pytest.mark.parametrize(
        "where", ["c/files/1/1", "c/files/1/9", "c/files/2/0", "c/files/9999999999/0", "d/files/1/0", "c/files/0/0"]
    )
    def test_what_is_no_file_is_not_found(self, anns, conversation, where):
        assert run(get(anns, f"/{where}")).status_code == 404

    @pytest.mark.parametrize(
        "address",
        [
            f"http://testserver{URL}/c/files/1/0",
            f"https://testserver{URL}/c/files/1/0",
            f"{URL}/c/files/1/0",
            "http://testserver/api/conversations/c/messages/1/media/0/",
        ],
    )
    def test_an_edit_with_the_address_keeps_the_file(self, anns, conversation, settings, address):
        file = {"type": "file", "mediaType": "image/png", "url": address}
        edited = question("And that?", id="message-1")
        edited["parts"].append(file)

        async def ask() -> None:
            await read(await post(anns, {"id": "c", "message": edited, "messageId": "message-1"}))

        run(ask())
        sent = settings.CHATMEMORY["CHAT"]["ASSISTANT"].model.sent[-1][-1]
        assert sent.contents[1].image == Image(base64_data=base64.b64encode(PNG).decode(), mime_type="image/png")

    def test_the_message_of_a_list_that_is_sent_again_is_the_same_one(self, anns, conversation):
        async def ask() -> None:
            shown = (await get(anns, "/c/messages")).json()
            await read(await post(anns, {"id": "c", "messages": shown[:1]}))

        run(ask())

        assert Message.objects.filter(type="USER").count() == 1

    @pytest.mark.parametrize(
        "where", ["chat/c/files/1/1", "chat/c/files/7/0", "chat/d/files/1/0", "conversations/d/messages/1/media/0/"]
    )
    def test_an_address_of_another_file_is_refused_and_not_sent_to_the_model(self, anns, conversation, settings, where):
        file = {"type": "file", "mediaType": "image/png", "url": f"http://testserver/api/{where}"}

        response = run(post(anns, {"id": "c", "message": question(parts=[file])}))

        assert response.status_code == 400
        assert response.content.startswith(b"$.message.parts[0].url: ")
        assert settings.CHATMEMORY["CHAT"]["ASSISTANT"].model.sent == []


class TestBounds:
    @pytest.fixture
    def gate(self, settings) -> asyncio.Event:
        gate = asyncio.Event()
        settings.CHATMEMORY["CHAT"]["ASSISTANT"] = Assistant(ScriptedModel("one two three", gate=gate))
        return gate

    @pytest.mark.slow
    def test_streams_of_one_user(self, anns, bobs, gate, settings):
        settings.CHATMEMORY["CHAT"]["MAX_STREAMS"] = 3

        async def test() -> None:
            first = await post(anns, {"id": "c", "message": question()})
            others = [await get(anns, "/c/stream") for _ in range(2)]
            for refused in (await get(anns, "/c/stream"), await post(anns, {"id": "d", "message": question()})):
                assert (refused.status_code, int(refused["Retry-After"]) > 0) == (429, True)
            assert b"3 streams" in refused.content
            bob = await post(bobs, {"id": "c", "message": question()})
            del others[0]  # its client left before it was read
            gc.collect()  # the test's client keeps it in a circle
            again = await get(anns, "/c/stream")
            gate.set()
            for response in (first, *others, again, bob):
                assert "three" in await read(response)
            await read(await post(anns, {"id": "d", "message": question()}))

        run(test())
        assert set(Conversation.objects.values_list("owner__username", flat=True)) == {"ann", "bob"}

    def test_answers_of_one_user_in_all_processes(self, ann, anns, bobs, gate, settings):
        settings.CHATMEMORY["CHAT"]["MAX_ANSWERS"] = 2

        async def test() -> None:
            first = [await post(anns, {"id": name, "message": question()}) for name in ("c", "d")]
            refused = await post(anns, {"id": "e", "message": question()})
            assert (refused.status_code, int(refused["Retry-After"]) > 0) == (429, True)
            assert refused.content == b"You have 2 answers in progress; wait for one of them, or stop it."
            assert await answers().find(f"{ann.pk}:e", str(ann.pk)) is None
            bob = await post(bobs, {"id": "c", "message": question()})
            gate.set()
            for response in (*first, bob):
                await read(response)
            await read(await post(anns, {"id": "e", "message": question()}))

        run(test())

    def test_of_many_questions_at_once_as_many_are_answered_as_may_be(self, anns, gate, settings):
        settings.CHATMEMORY["CHAT"]["MAX_ANSWERS"] = 2

        async def test() -> None:
            asked = [post(anns, {"id": f"c{number}", "message": question()}) for number in range(8)]
            responses = await asyncio.gather(*asked)
            assert sorted(response.status_code for response in responses) == [200] * 2 + [429] * 6
            gate.set()
            for response in responses:
                if response.status_code == 200:
                    await read(response)

        run(test())

    @pytest.mark.slow
    def test_listeners_of_an_answer_elsewhere_share_one_reader(self, ann, anns, gate, monkeypatch):
        async def test() -> None:
            asked = await post(anns, {"id": "c", "message": question()})
            elsewhere = Answers()
            reads: list[int] = []
            original = elsewhere._streams.read
            monkeypatch.setattr(
                elsewhere._streams, "read", lambda maker, position: (reads.append(1), original(maker, position))[1]
            )
            maker = await elsewhere.find(f"{ann.pk}:c", str(ann.pk))

            async def listen() -> str:
                return "".join([piece async for piece in elsewhere.listen(maker)])

            listening = [asyncio.create_task(listen()) for _ in range(50)]
            while len(reads) < 3:
                await asyncio.sleep(0.05)
            late = asyncio.create_task(listen())
            gate.set()
            whole = await read(asked)
            assert await asyncio.gather(*listening, late) == [whole] * 51
            assert len(reads) < 25
            assert elsewhere._following._followed == {}

        run(test())

    def test_no_one_reads_for_listeners_that_have_left(self, ann, anns, gate):
        async def test() -> None:
            asked = await post(anns, {"id": "c", "message": question()})
            elsewhere = Answers()
            maker = await elsewhere.find(f"{ann.pk}:c", str(ann.pk))
            stream = elsewhere.listen(maker)
            await anext(stream)
            await stream.aclose()
            while elsewhere._following._followed:
                await asyncio.sleep(0.05)
            gate.set()
            await read(asked)

        run(asyncio.wait_for(test(), 30))

    @pytest.mark.parametrize(
        ("method", "where"), [("get", "messages"), ("get", "stream"), ("post", "stop"), ("get", "files/1/0")]
    )
    def test_requests_other_than_questions(self, anns, settings, method, where):
        settings.CHATMEMORY["CHAT"] |= {"THROTTLE_RATE": "1/day", "READ_THROTTLE_RATE": "3/day"}

        async def test() -> list[int]:
            ask = getattr(AsyncClient(), method)
            await read(await post(anns, {"id": "c", "message": question()}))
            return [(await ask(f"{URL}/c/{where}", headers=anns)).status_code for _ in range(4)]

        *allowed, refused = run(test())
        assert (429 in allowed, refused) == (False, 429)

    def test_refused_questions_count_too(self, anns, settings):
        settings.CHATMEMORY["CHAT"]["THROTTLE_RATE"] = "2/day"

        assert [run(post(anns, {})).status_code for _ in range(3)] == [400, 400, 429]

    def test_guessed_tokens_are_counted_together_with_those_of_rest(self, anns, settings):
        settings.CHATMEMORY["REST"] = {"THROTTLE_RATES": {"sign_in": "4/day"}}

        async def test() -> None:
            for number in range(2):
                wrong = {"Authorization": f"Bearer {number}"}
                assert (await get(wrong, "/c/messages")).status_code == 401
                assert (await AsyncClient().get("/api/conversations/", headers=wrong)).status_code == 401
            refused = await get(wrong, "/c/messages")
            assert (refused.status_code, int(refused["Retry-After"]) > 0) == (429, True)
            assert (await AsyncClient().get("/api/conversations/", headers=wrong)).status_code == 429
            assert (await get(anns, "/c/messages")).status_code == 200
            assert (await get({}, "/c/messages")).status_code == 401  # no attempt

        run(test())


class TestIds:
    @pytest.mark.parametrize("chat_id", ["invoice20260ab12", "aB3dE6gH9jK2mN5p", "7:orders", "../c", "newsletter"])
    def test_no_user_takes_an_id_before_the_site_does(self, ann, anns, chat_id):
        async def test() -> list:
            await read(await post(anns, {"id": chat_id, "message": question("Mine.")}))
            shown = (await get(anns, f"/{chat_id.replace('/', '%2F')}/messages")).json()
            return [each["role"] for each in shown]

        assert run(test()) == ["user", "assistant"]
        assert get_chat_memory(chat_id).messages() == []
        assert Conversation.objects.get().memory_id == f"{ann.pk}:{chat_id}"

    def test_a_conversation_with_that_id_that_the_user_owns_is_continued(self, ann, anns):
        get_chat_memory("aB3dE6gH9jK2mN5p", owner=ann).add(UserMessage("Before."))

        async def test() -> None:
            await read(await post(anns, {"id": "aB3dE6gH9jK2mN5p", "message": question("Now.")}))

        run(test())
        assert Conversation.objects.count() == 1


class TestAnswers:
    def test_nothing_may_be_kept_by_caches(self, anns):
        async def test() -> list[str]:
            asked = await post(anns, {"id": "c", "message": question()})
            await read(asked)
            others = [await get(anns, where) for where in ("", "/c/messages", "/c/stream", "/c/files/1/0")]
            return [response["Cache-Control"] for response in (asked, *others)]

        assert all("no-store" in value for value in run(test()))

    def test_without_an_assistant_a_question_is_a_short_503(self, anns, settings):
        settings.CHATMEMORY["CHAT"]["ASSISTANT"] = None

        response = run(post(anns, {"id": "c", "message": question()}))

        assert (response.status_code, response.content) == (503, b"This chat has no assistant.")
        assert not Conversation.objects.exists()
