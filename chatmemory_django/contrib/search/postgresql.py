"""
The index on PostgreSQL: words, and parts of words.

Words are separated by spaces and punctuation and are case-insensitive; in scripts without spaces between words, each
character is a word. They are stored in an index of an expression, so the table needs no further columns or rows. What
matters is which rows an index reads, and that they are few, so this is not left to the planner.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError
from django.db.models import BooleanField, ExpressionWrapper, F, Func, Lookup

from chatmemory_django.models import Conversation, finding
from chatmemory_django.models.finding import IsAmong, Rows, has

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor
    from django.db.models import Q, QuerySet
    from django.db.models.sql.compiler import SQLCompiler

    from chatmemory_django.models.finding import Sql

INDEXED = 100_000
"""How many characters of a message are indexed: with more, its words might not fit a tsvector."""

RECENT = 10_000
"""How many of the newest messages are searched for a word that is in nearly all messages, or in none."""

SAMPLE = 1_000
"""Fewer conversations are searched one by one, newest first; among more, a word is looked up in the index if rare."""

COMMON = 30
"""A word is common if so many of the newest ``SAMPLE`` conversations have it: the index would find too many."""

TRIGRAM = re.compile(r"[^\W_]{3}")
"""The part of a term that the index of trigrams can look up."""

# ASCII punctuation; Thai, Lao, Burmese, Khmer, Chinese and Japanese.
_ALONE = (
    r"([!-/:-@\[-`{-~\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
    r"\u2e80-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])"
)


def create(editor: BaseDatabaseSchemaEditor, table: str) -> None:
    """Build the indexes on *table*, the one of the messages, and those of the conversations' memory ids and titles."""
    _create_extension(editor)
    drop(editor, table)  # the remains of a build that was interrupted
    conversations = apps.get_model("chatmemory", "Conversation")._meta.db_table
    for name, of, method, expression, condition in (
        ("words", table, "gin", f"({_vector('text')})", " WHERE in_history"),
        ("parts", table, "gin", "upper(text) gin_trgm_ops", " WHERE in_history"),
        ("recent", table, "btree", "created_at", ""),
        ("ids", conversations, "gin", "upper(memory_id::text) gin_trgm_ops", ""),
        ("titles", conversations, "gin", "upper(title::text) gin_trgm_ops", ""),
    ):
        editor.execute(
            f"CREATE INDEX {_concurrently(editor, of)} {_name(editor, name)} ON {editor.quote_name(of)} "
            f"USING {method} ({expression}){condition}",
            None,
        )


def drop(editor: BaseDatabaseSchemaEditor, table: str) -> None:
    """Drop the indexes. The extension stays: others may use it."""
    concurrently = _concurrently(editor, table)
    for name in ("words", "parts", "recent", "ids", "titles"):
        editor.execute(f"DROP INDEX {concurrently} IF EXISTS {_name(editor, name)}", None)


def candidates(scope: QuerySet[Any], terms: Sequence[str]) -> IsAmong:
    """Return the condition for the messages of *scope* with all of *terms* that are to be ranked."""
    return IsAmong(F("pk"), _Found(scope, terms))


def looks_up(scope: QuerySet[Any], terms: Sequence[str], condition: Q) -> bool:
    """See ``finding.Index``. It takes two queries if a part of one of *terms* can be looked up."""
    if not any(map(TRIGRAM.search, terms)) or scope.order_by().values("pk")[:SAMPLE].count() < SAMPLE:
        return False
    newest = Conversation.objects.using(scope.db).order_by("-active_hour")
    met: Iterable[bool] = newest.values_list(ExpressionWrapper(condition, BooleanField()), flat=True)[:SAMPLE]
    return sum(met) < COMMON


def _create_extension(editor: BaseDatabaseSchemaEditor) -> None:
    try:
        editor.execute("CREATE EXTENSION IF NOT EXISTS pg_trgm", None)
    except DatabaseError as exc:
        raise ImproperlyConfigured(
            f"chatmemory_django.contrib.search needs PostgreSQL's extension pg_trgm, which could not be created "
            f"({exc}). Install the server's contrib package, or have the database owner or a superuser run CREATE "
            "EXTENSION pg_trgm; then migrate again."
        ) from exc


def _concurrently(editor: BaseDatabaseSchemaEditor, table: str) -> str:
    """Return the keyword that lets others write in the meantime; "" for partitioned tables, where PostgreSQL cannot."""
    with editor.connection.cursor() as cursor:
        cursor.execute("SELECT relkind FROM pg_class WHERE oid = to_regclass(%s)", [editor.quote_name(table)])
        return "" if cursor.fetchone() == ("p",) else "CONCURRENTLY"


def _name(editor: BaseDatabaseSchemaEditor, name: str) -> str:
    return editor.quote_name(f"chatmemory_search_{name}")


def _spaced(text: str) -> str:
    return rf"regexp_replace({text}, '{_ALONE}', ' \1 ', 'g')"


def _vector(column: str) -> str:
    return f"""to_tsvector('simple'::regconfig, {_spaced(f'"left"({column}, {INDEXED})')})"""


class _HasWords(Lookup):
    """Whether the text on the left has all words of the terms on the right, the last one possibly as a prefix."""

    prepare_rhs = False

    # Without words, the query is empty. It is hidden from the planner, which takes prefixes for common.
    _query = (
        "COALESCE((NULLIF(plainto_tsquery('simple'::regconfig, "
        + _spaced("%s::text")
        + ")::text, '') || ':*')::tsquery, plainto_tsquery(''))"
    )

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Sql:
        column, _ = self.process_lhs(compiler, connection)
        query = " && ".join([self._query] * len(self.rhs))
        return f"{_vector(column)} @@ (SELECT {query})", tuple(self.rhs)


class _Found(Func):
    """
    The keys of the found messages: at most those with certain words, and a few hundred more.

    If fewer than ``RANKED`` messages have the words, these are all of them, in the *scope* or not. More common words,
    and terms without words, are searched in the newest messages of the *scope*; a term that is not there and may be
    part of a word is searched by trigrams, last of all: if all of them are common, reading them takes long.

    A CTE is planned as if all of its rows were needed, so with an index, and then read only as far as necessary.
    Without it, a LIMIT makes the planner read the table, hoping to find enough rows soon.
    """

    output_field = BooleanField()  # meaningless, but Django requires one of every expression

    def __init__(self, scope: QuerySet[Any], terms: Sequence[str]) -> None:
        columns = ("conversation_id", "sequence", "text")
        every = scope.model._default_manager.using(scope.db).filter(in_history=True).order_by().values_list(*columns)
        newest = scope.order_by("-created_at").values_list(*columns)[:RECENT]
        rows = (every.filter(_HasWords(F("text"), terms)), newest, every.filter(has(terms)))
        super().__init__(*map(Rows, rows))
        self.terms = tuple(terms)

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **context: Any) -> Sql:  # type: ignore[override]
        (with_words, with_words_params), (newest, newest_params), (with_parts, with_parts_params) = map(
            compiler.compile, self.source_expressions
        )
        patterns = tuple(f"%{connection.ops.prep_for_like_query(term)}%" for term in self.terms)
        has_all = " AND ".join(["UPPER(text) LIKE UPPER(%s)"] * len(patterns))
        has_trigrams, ranked = any(map(TRIGRAM.search, self.terms)), finding.RANKED
        sql = f"""(
            WITH with_words AS MATERIALIZED {with_words}, newest AS MATERIALIZED {newest},
            with_parts AS MATERIALIZED {with_parts},
            words AS MATERIALIZED (
                SELECT conversation_id, sequence FROM with_words WHERE {has_all} LIMIT {ranked}
            ),
            recent AS MATERIALIZED (
                SELECT conversation_id, sequence FROM newest
                WHERE (SELECT COUNT(*) FROM words) NOT BETWEEN 1 AND {ranked} - 1 AND {has_all} LIMIT {ranked}
            ),
            parts AS MATERIALIZED (
                SELECT conversation_id, sequence FROM with_parts
                WHERE {has_trigrams} AND NOT EXISTS (SELECT FROM words) AND NOT EXISTS (SELECT FROM recent)
                AND (SELECT COUNT(*) FROM newest) = {RECENT} LIMIT {ranked}
            )
            TABLE words UNION TABLE recent UNION TABLE parts
        )"""  # noqa: S608  # only names and numbers
        params = (*with_words_params, *newest_params, *with_parts_params, *patterns, *patterns)
        return sql, params
