"""
Clients of OpenAI's API in Python, unchanged, against the example site: each through two turns, a stream and a tool.

    python openai_clients.py SITE TOKEN

They have an environment of their own, since some need an older client of OpenAI's than the site.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

MODEL = "assistant"
ZONE = "Europe/Berlin"


def get_time_zone() -> str:
    """Return the time zone of the user."""
    return ZONE


def langchain(url: str, key: str, *, responses: bool) -> None:
    """LangChain's ChatOpenAI, with either API."""
    model = ChatOpenAI(model=MODEL, base_url=url, api_key=key, use_responses_api=responses)  # type: ignore[arg-type]
    asked = [HumanMessage("Hello")]
    first = model.invoke(asked)
    second = model.invoke([*asked, first, HumanMessage("Again")])
    assert "You wrote: Hello" in first.text, first
    assert "You wrote: Again" in second.text, second
    assert second.usage_metadata["total_tokens"] == 15, second
    assert "You wrote: Hello" in "".join(chunk.text for chunk in model.stream("Hello"))
    bound, asked = model.bind_tools([get_time_zone]), [HumanMessage("Where are we?")]
    called = bound.invoke(asked)
    [call] = called.tool_calls
    answer = bound.invoke([*asked, called, ToolMessage(get_time_zone(), tool_call_id=call["id"])])
    assert ZONE in answer.text, answer


def llama_index(url: str, key: str) -> None:
    """LlamaIndex's OpenAILike, and an agent of it."""
    model = OpenAILike(
        model=MODEL, api_base=url, api_key=key, is_chat_model=True, is_function_calling_model=True, context_window=8000
    )
    asked = [ChatMessage(role="user", content="Hello")]
    first = model.chat(asked)
    second = model.chat([*asked, first.message, ChatMessage(role="user", content="Again")])
    assert "You wrote: Hello" in str(first), first
    assert "You wrote: Again" in str(second), second
    assert "You wrote: Hello" in "".join(each.delta or "" for each in model.stream_chat(asked))
    agent = FunctionAgent(tools=[get_time_zone], llm=model)

    async def run() -> str:
        return str(await agent.run("Where are we?"))

    assert ZONE in asyncio.run(run())


def llm(url: str, key: str) -> None:
    """The command ``llm``, with its configuration."""
    with tempfile.TemporaryDirectory() as folder:
        names = {
            "model_id": "site",
            "model_name": MODEL,
            "api_base": url,
            "api_key_name": "site",
            "supports_tools": "true",
        }
        config = "".join(f"  {name}: {value}\n" for name, value in names.items()).replace(" ", "-", 1)
        Path(folder, "extra-openai-models.yaml").write_text(config)
        command = str(Path(sys.executable).with_name("llm"))

        def run(*arguments: str) -> str:
            environment = {**os.environ, "LLM_USER_PATH": folder}
            return subprocess.run(
                [command, *arguments], env=environment, check=True, capture_output=True, text=True
            ).stdout

        run("keys", "set", "site", "--value", key)
        assert "You wrote: Hello" in run("-m", "site", "Hello")
        assert "You wrote: Again" in run("-c", "Again")
        assert "You wrote: Hello" in run("-m", "site", "--no-stream", "Hello")
        function = "def get_time_zone() -> str:\n    'Return the time zone.'\n    return 'Europe/Berlin'"
        assert ZONE in run("-m", "site", "--functions", function, "Where are we?")


def main(site: str, key: str) -> None:
    """Run each client."""
    url = f"{site}/openai/v1"
    clients: dict[str, Callable[[], None]] = {
        "LangChain, completions": lambda: langchain(url, key, responses=False),
        "LangChain, responses": lambda: langchain(url, key, responses=True),
        "LlamaIndex": lambda: llama_index(url, key),
        "llm": lambda: llm(url, key),
    }
    for name, run in clients.items():
        run()
        print(f"{name}: two turns, a stream and a tool")


if __name__ == "__main__":
    main(*sys.argv[1:3])
