"""The connections of OpenAiChatModel: shared where possible, and closed when unused."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from textwrap import dedent

import pytest

from chatmemory_django.chat.model import ChatResponse, PartialText
from tests.faces.chat.openai.test_openai_requests import model_at
from tests.faces.chat.server import PATIENCE, ModelServer, Reply, Request, Step, answer_to, chunk


@pytest.fixture
def echo(server: ModelServer) -> ModelServer:
    """Return a server that answers each text with that text."""

    def reply(request: Request) -> Reply:
        return answer_to(request, {"content": request.body["messages"][-1]["content"]}, "stop")

    server.replies.append(reply)
    return server


class TestLeavingAStream:
    @pytest.fixture(autouse=True)
    def endless(self, server: ModelServer) -> None:
        server.reply(chunk({"content": "Hel"}), Step.AWAIT_CLIENT)

    def test_ends_its_request(self, server: ModelServer):
        events = model_at(server).stream("hi")
        assert next(events) == PartialText("Hel")

        events.close()

        assert server.client_has_left.wait(PATIENCE)

    def test_ends_its_request_in_async_code(self, server: ModelServer):
        async def leave() -> None:
            async with aclosing(model_at(server).astream("hi")) as events:
                assert await anext(events) == PartialText("Hel")
            assert await asyncio.to_thread(server.client_has_left.wait, PATIENCE)

        asyncio.run(leave())

    def test_with_an_error_ends_its_request(self, server: ModelServer):
        def fail() -> None:
            for _ in model_at(server).stream("hi"):
                raise LookupError

        with pytest.raises(LookupError):
            fail()

        assert server.client_has_left.wait(PATIENCE)

    def test_by_cancelling_its_task_ends_its_request(self, server: ModelServer):
        async def cancel() -> None:
            seen = asyncio.Event()

            async def read() -> None:
                async for _ in model_at(server).astream("hi"):
                    seen.set()

            task = asyncio.create_task(read())
            await seen.wait()
            task.cancel()
            assert await asyncio.to_thread(server.client_has_left.wait, PATIENCE)
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(cancel())

    def test_by_dropping_all_references_ends_its_request(self, server: ModelServer):
        async def forget() -> None:
            async for event in model_at(server).astream("hi"):
                assert event == PartialText("Hel")
                break
            gc.collect()
            assert await asyncio.to_thread(server.client_has_left.wait, PATIENCE)

        asyncio.run(forget())


class TestCancellingAnAnswer:
    @pytest.mark.parametrize("is_stream", [False, True])
    def test_before_its_first_byte_ends_its_request(self, server: ModelServer, is_stream: bool):
        server.reply(Step.AWAIT_CLIENT)

        async def ask() -> None:
            model = model_at(server)
            if is_stream:
                await anext(model.astream("hi"))
            else:
                await model.achat("hi")

        async def cancel() -> None:
            task = asyncio.create_task(ask())
            while not server.requests:
                await asyncio.sleep(0.01)
            task.cancel()
            assert await asyncio.to_thread(server.client_has_left.wait, PATIENCE)
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(cancel())


class TestAClient:
    def test_reuses_its_connection(self, echo: ModelServer):
        model = model_at(echo)

        assert [model.chat(str(number)) for number in range(5)] == list("01234")
        assert len(echo.connections) == 1

    def test_reuses_its_connection_within_an_event_loop(self, echo: ModelServer):
        model = model_at(echo)

        async def ask() -> list[str]:
            texts = [await model.achat(str(number)) for number in range(5)]
            return texts + [str(event) async for event in model.astream("5") if isinstance(event, PartialText)]

        assert asyncio.run(ask()) == [*"01234", "PartialText(text='5')"]
        assert len(echo.connections) == 1

    @pytest.mark.slow
    def test_serves_many_threads_at_once(self, echo: ModelServer):
        model = model_at(echo)
        together = threading.Barrier(16)

        def ask(number: int) -> list[object]:
            together.wait(PATIENCE)
            last = list(model.stream(f"stream {number}"))[-1]
            assert isinstance(last, ChatResponse)
            return [model.chat(f"chat {number}"), last.ai_message.text]

        with ThreadPoolExecutor(16) as threads:
            answers = list(threads.map(ask, range(16)))

        assert answers == [[f"chat {number}", f"stream {number}"] for number in range(16)]

    def test_shares_its_connections_among_threads(self, echo: ModelServer):
        model = model_at(echo)

        for number in range(3):
            thread = threading.Thread(target=model.chat, args=[str(number)])
            thread.start()
            thread.join()

        assert len(echo.requests) == 3
        assert len(echo.connections) == 1

    @pytest.mark.slow
    def test_serves_many_tasks_at_once(self, echo: ModelServer):
        model = model_at(echo)

        async def ask() -> list[str]:
            return await asyncio.gather(*(model.achat(str(number)) for number in range(50)))

        assert asyncio.run(ask()) == [str(number) for number in range(50)]

    def test_serves_one_event_loop_after_another(self, echo: ModelServer):
        model = model_at(echo)

        for number in range(3):
            assert asyncio.run(model.achat(str(number))) == str(number)
            assert echo.a_connection_is_closed()  # closed at the end of the loop although the model still exists

        gc.collect()  # a ResourceWarning would be an error

    def test_serves_event_loops_in_many_threads(self, echo: ModelServer):
        model = model_at(echo)
        together = threading.Barrier(4)

        async def ask(number: int) -> list[str]:
            together.wait(PATIENCE)
            return [await model.achat(f"{number} {time}") for time in range(5)]

        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(lambda number: asyncio.run(ask(number)), range(4)))

        assert answers == [[f"{number} {time}" for time in range(5)] for number in range(4)]

    def test_is_closed_with_its_model(self, echo: ModelServer):
        model = model_at(echo)
        model.chat("hi")

        del model

        assert echo.a_connection_is_closed()

    def test_in_an_event_loop_is_closed_with_its_model(self, echo: ModelServer):
        async def ask() -> None:
            assert await model_at(echo).achat("hi") == "hi"
            assert await asyncio.to_thread(echo.a_connection_is_closed)

        asyncio.run(ask())

    @pytest.mark.filterwarnings("ignore::ResourceWarning")  # a loop left open leaves its connections open
    @pytest.mark.slow
    def test_does_not_keep_an_event_loop_that_was_closed_early(self, echo: ModelServer):
        model = model_at(echo)
        loop = asyncio.new_event_loop()
        loop.run_until_complete(model.achat("hi"))
        loop.close()
        gone = weakref.ref(loop)

        del loop
        asyncio.run(model.achat("hi"))
        gc.collect()

        assert gone() is None


class TestAProcess:
    @pytest.mark.slow
    def test_has_its_own_connections_after_a_fork(self, echo: ModelServer):
        forked = run(
            echo,
            """
            assert model.chat("hi") == "hi"
            child = os.fork()
            assert [model.chat("still there?") for _ in range(3)] == ["still there?"] * 3
            if not child:
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            """,
        )

        assert forked == ""
        assert len(echo.connections) == 2

    @pytest.mark.slow
    def test_ends_with_all_connections_closed(self, echo: ModelServer):
        assert run(echo, 'assert model.chat("hi") == "hi"') == ""
        assert run(echo, 'assert asyncio.run(model.achat("hi")) == "hi"') == ""

    def test_without_the_client_names_the_extra_to_install(self):
        output = python("import sys; sys.modules['openai'] = None; import chatmemory_django.chat.openai")

        assert output.splitlines()[-1] == (
            "ImportError: OpenAiChatModel requires openai: pip install 'chatmemory_django[openai]'."
        )


def run(server: ModelServer, script: str) -> str:
    """Return the output of a process that creates a model and runs *script*."""
    model = f'OpenAiChatModel("gpt-test", base_url={server.url!r}, api_key="k")'
    beginning = f"import asyncio, os\nfrom chatmemory_django.chat.openai import OpenAiChatModel\nmodel = {model}\n"
    return python(beginning + dedent(script))


def python(script: str) -> str:
    """Return the output of a process that runs *script*."""
    root = Path(__file__).parents[4]
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=root,
        # The development mode of Python would print which steps of the event loop take long.
        env={**os.environ, "PYTHONPATH": str(root), "PYTHONDEVMODE": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    ).stdout
