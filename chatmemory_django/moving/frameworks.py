"""Which framework is read how."""

from __future__ import annotations

from contextlib import AbstractContextManager

from chatmemory_django.moving import chatgpt, langchain, langchain4j, llama_index, openai_agents, pydantic_ai
from chatmemory_django.moving.documents import open_array, open_conversations
from chatmemory_django.moving.moved import ReadMessages, Source, UnreadableError
from chatmemory_django.moving.tables import ReadRow, Table, is_database, open_table

TABLES: dict[str, tuple[Table, ReadRow]] = {
    "langchain": (langchain.TABLE, langchain.read_row),
    "llamaindex": (llama_index.TABLE, llama_index.read_row),
    "openai": (openai_agents.TABLE, openai_agents.read_row),
}
"""The frameworks that keep messages in a table."""

MESSAGES: dict[str, ReadMessages] = {
    "langchain": langchain.read_messages,
    "langchain4j": langchain4j.read_messages,
    "llamaindex": llama_index.read_messages,
    "pydantic-ai": pydantic_ai.read_messages,
}
"""The frameworks that write the messages of a conversation as a list."""

FRAMEWORKS = tuple(sorted({*TABLES, *MESSAGES}))


def open_source(framework: str, source: str, table: str | None = None) -> AbstractContextManager[Source]:
    """
    Open what *framework* has written: a database, or its *table*, if it has a name of its own, or a file of JSON.

    Raises:
        UnreadableError: It is neither, or it is not that framework's; also while it is read.
        OSError: There is no such file, or it cannot be read.

    """
    if framework in TABLES and (table is not None or is_database(source)):
        layout, read_row = TABLES[framework]
        return open_table(source, layout._replace(name=table or layout.name), read_row)
    if framework == "openai":
        return open_array(source, chatgpt.FILES, chatgpt.read_conversation)
    if framework in MESSAGES and not is_database(source):
        return open_conversations(source, MESSAGES[framework])
    raise UnreadableError(f"{framework} keeps no messages in a table; give its JSON.")
