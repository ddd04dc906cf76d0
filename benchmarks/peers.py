"""The peers, used as their documentation recommends. One object serves the whole run; each call names the conversation.

Their histories are written by the database, in the form that they write themselves: loading through them takes hours.
"""

from __future__ import annotations

import json
import uuid
from typing import Any

import tiktoken
from django.conf import settings
from langchain_community.chat_message_histories import SQLChatMessageHistory
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, message_to_dict, trim_messages
from langchain_postgres import PostgresChatMessageHistory
from sqlalchemy import create_engine, event

from benchmarks.databases import connect
from benchmarks.histories import Bound, Sql, add_format, load
from benchmarks.subjects import Subject


class Peer(Subject):
    """The base class of peers. *format* names their format of messages."""

    format: str
    id_attribute = "session_id"

    def __init__(self, server: str, bound: Bound) -> None:
        super().__init__(server, bound)
        self.encode = tiktoken.encoding_for_model("gpt-4o-mini").encode
        self.object: Any = None
        self.has_format = False
        given = settings.DATABASES[server]
        self.postgresql = f"{given.get('USER')}:{given.get('PASSWORD')}@{given.get('HOST')}:{given.get('PORT')}"
        self.path = given["NAME"]

    def conversation(self, key: str) -> Any:
        """Return the peer's object, for the conversation *key*. Some peers are expensive to construct."""
        if self.object is None:
            self.object = self.open(key)
        setattr(self.object, self.id_attribute, self.id(key))
        return self.object

    def open(self, key: str) -> Any:
        raise NotImplementedError

    def id(self, key: str) -> str:
        """Return the peer's id for *key*."""
        return key

    def written(self, text: str, is_user: bool) -> str:
        """Return the text that the peer stores for a message."""
        raise NotImplementedError

    def load_rows(self, table: str, columns: dict[str, Any], count: int) -> None:
        if not self.has_format:
            add_format(self.server, self.format, self.written)
            self.has_format = True
        load(self.server, table, columns, count, self.format)

    def engine_options(self) -> tuple[str, Any]:
        """Return the database's URL, without the driver, and the options with which SQLite syncs as Django's does."""
        if self.server == "sqlite":
            return f"sqlite%s:///{self.path}", lambda raw, _record: raw.execute("PRAGMA synchronous=NORMAL")
        return f"postgresql%s://{self.postgresql}/{settings.DATABASE}", None


class LangChain(Peer):
    """langchain-postgres, or SQLChatMessageHistory of langchain-community on SQLite, with ``trim_messages``."""

    name = format = "langchain"
    label = "langchain-postgres, `trim_messages`"

    def __init__(self, server: str, bound: Bound) -> None:
        super().__init__(server, bound)
        self.connection = None
        if server == "postgresql":
            self.id_attribute = "_session_id"
            self.connection = connect(server)
            self.connection.autocommit = False  # psycopg's default, and so what its documentation shows
            PostgresChatMessageHistory.create_tables(self.connection, "bench_langchain")
        else:
            self.label = "langchain-community: `SQLChatMessageHistory`, `trim_messages`"
            url, on_connect = self.engine_options()
            self.engine = create_engine(url % "")
            event.listen(self.engine, "connect", on_connect)

    def open(self, key: str) -> Any:
        if self.server == "postgresql":
            return PostgresChatMessageHistory("bench_langchain", self.id(key), sync_connection=self.connection)
        return SQLChatMessageHistory(self.id(key), "bench_langchain", connection=self.engine)

    def load(self, key: str, count: int) -> None:
        self.conversation(key)  # creates the table
        message = "CAST(texts.body AS jsonb)" if self.server == "postgresql" else "texts.body"
        self.load_rows("bench_langchain", {"session_id": self.id(key), "message": Sql(message)}, count)

    def add(self, key: str, text: str, is_user: bool) -> None:
        self.conversation(key).add_messages([self._message(text, is_user)])

    def read(self, key: str) -> list[BaseMessage]:
        messages = self.conversation(key).get_messages()
        if self.connection is not None:
            self.connection.commit()  # else the transaction stays open until the next add
        return trim_messages(
            messages,
            max_tokens=self.bound.limit,
            strategy="last",
            token_counter=self._count,
            include_system=True,
            start_on="human",
        )

    def written(self, text: str, is_user: bool) -> str:
        return json.dumps(message_to_dict(self._message(text, is_user)))

    def close(self) -> None:
        if self.connection is None:
            self.engine.dispose()
        else:
            self.connection.close()

    def _count(self, messages: list[BaseMessage]) -> int:
        return 3 + sum(4 + len(self.encode(str(message.content))) for message in messages)

    def _message(self, text: str, is_user: bool) -> BaseMessage:
        return HumanMessage(text) if is_user else AIMessage(text)

    def id(self, key: str) -> str:
        return str(uuid.uuid5(uuid.NAMESPACE_OID, key))
