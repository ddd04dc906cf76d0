"""The reader for each framework."""

from __future__ import annotations

from contextlib import AbstractContextManager

from chatmemory_django.contrib.importing import chatgpt, langchain, langchain4j, llama_index, openai_agents, pydantic_ai
from chatmemory_django.contrib.importing.documents import open_array, open_conversations
from chatmemory_django.contrib.importing.moved import ReadMessages, Source, UnreadableSourceError
from chatmemory_django.contrib.importing.tables import ReadRow, Table, is_database, open_table

TABLES: dict[str, tuple[Table, ReadRow]] = {
    "langchain": (langchain.TABLE, langchain.read_row),
    "llamaindex": (llama_index.TABLE, llama_index.read_row),
    "openai": (openai_agents.TABLE, openai_agents.read_row),
}
"""The frameworks that store messages in a table."""

MESSAGES: dict[str, ReadMessages] = {
    "langchain": langchain.read_messages,
    "langchain4j": langchain4j.read_messages,
    "llamaindex": llama_index.read_messages,
    "pydantic-ai": pydantic_ai.read_messages,
}
"""The frameworks that write a conversation's messages as a list."""

FRAMEWORKS = tuple(sorted({*TABLES, *MESSAGES}))


def open_source(framework: str, source: str, table: str | None = None) -> AbstractContextManager[Source]:
    """
    Open the data of *framework*: a database, with *table* if the table is not named as by default, or a JSON file.

    Raises:
        UnreadableSourceError: It is neither, or not that framework's; this may also be raised while it is read.
        OSError: The file does not exist, or cannot be read.

    """
    if framework in TABLES and (table is not None or is_database(source)):
        layout, read_row = TABLES[framework]
        return open_table(source, layout._replace(name=table or layout.name), read_row)
    if framework == "openai":
        return open_array(source, chatgpt.FILES, chatgpt.read_conversation)
    if framework in MESSAGES and not is_database(source):
        return open_conversations(source, MESSAGES[framework])
    raise UnreadableSourceError(f"{framework} does not store messages in a table; pass its JSON.")
