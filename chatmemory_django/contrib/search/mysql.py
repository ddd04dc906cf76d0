"""
The index on MariaDB and MySQL: FULLTEXT, which finds words by their beginning.

It omits words of one or two characters and a list of very common words, and it cannot split text in scripts without
spaces between words: for these, the messages themselves are read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError, transaction
from django.db.models import F, Lookup

from chatmemory_django.models.finding import IsAmong, has, is_among_newest

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor
    from django.db.models import QuerySet
    from django.db.models.sql.compiler import SQLCompiler

    from chatmemory_django.models.finding import Sql

INDEX = "chatmemory_search"

SHORTEST, LONGEST = 3, 84
"""The lengths of the words that InnoDB indexes by default: ``innodb_ft_min_token_size`` and ``…_max_…``."""

STOPWORDS = frozenset(
    re.findall(
        r"\w+",
        "a about an are as at be by com de en for from how i in is it la of on or that the this to und was what when "
        "where who will with www",
    )
)
"""The words that InnoDB does not index."""

# Where a word of a term is certain to start a word of a text: at its start, or after ASCII spaces and punctuation.
_WORD = re.compile(r"(?:^|[\s!-/:-@\[-^`{-~])(\w+)")
# Thai, Lao, Burmese, Khmer, Chinese and Japanese, and everything beyond the basic plane.
_UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff]|[^\0-\uffff]"
)


def create(editor: BaseDatabaseSchemaEditor, table: str) -> None:
    """Build the index on *table*, which others can read in the meantime, but not write."""
    # By copying: in place, MariaDB 10.11 omits the rows of a table that has had such an index before.
    editor.execute(f"ALTER TABLE {editor.quote_name(table)} ADD FULLTEXT INDEX {INDEX} (text), ALGORITHM=COPY", None)


def drop(editor: BaseDatabaseSchemaEditor, table: str) -> None:
    """Drop the index."""
    editor.execute(f"DROP INDEX {INDEX} ON {editor.quote_name(table)}", None)


def rebuild(connection: BaseDatabaseWrapper, table: str) -> None:
    """Rebuild *table* without the words of deleted rows; others can read it in the meantime, but not write."""
    with connection.cursor() as cursor:
        cursor.execute(f"OPTIMIZE TABLE {connection.ops.quote_name(table)}")
        failed = [text for _, _, kind, text in cursor.fetchall() if kind.lower() == "error"]
    if failed:  # it is a result, not an error
        raise DatabaseError(failed[0])


def deleted(connection: BaseDatabaseWrapper, table: str) -> int | None:
    """
    Return of how many deleted rows the index still has words; None if the user of the database may not see that.

    What the server shows of its indexes is set for all of its users: others may set it at the same time.
    """
    name = f"{connection.settings_dict['NAME']}/{table}"
    try:
        with transaction.atomic(connection.alias, savepoint=True), connection.cursor() as cursor:
            cursor.execute("SET GLOBAL innodb_ft_aux_table = %s", [name])
            count = 0
            for kind in ("DELETED", "BEING_DELETED"):
                cursor.execute(f"SELECT COUNT(*) FROM information_schema.INNODB_FT_{kind}")  # noqa: S608  # only names
                count += int(cursor.fetchone()[0])
            cursor.execute("SELECT @@GLOBAL.innodb_ft_aux_table")
            return count if cursor.fetchone()[0] == name else None
    except DatabaseError:
        return None


def candidates(scope: QuerySet[Any], terms: Sequence[str]) -> IsAmong:
    """Return the condition for the messages of *scope* with all of *terms* that are to be ranked."""
    hits = scope.filter(has(terms))
    words = words_of(terms)
    return is_among_newest(hits.filter(_HasWords(F("text"), words)) if words else hits)


def words_of(terms: Sequence[str]) -> list[str]:
    """Return the words of *terms* that the index contains."""
    words = {word.lower(): None for term in terms for word in _WORD.findall(term)}
    return [
        word
        for word in words
        if SHORTEST <= len(word) <= LONGEST and word not in STOPWORDS and not _UNSPACED.search(word)
    ]


class _HasWords(Lookup):
    """
    Whether the text on the left has words that start with each of those on the right, which are only letters and
    digits.
    """

    prepare_rhs = False

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Sql:
        text, _ = self.process_lhs(compiler, connection)
        return f"MATCH ({text}) AGAINST (%s IN BOOLEAN MODE) > 0", (" ".join(f"+{word}*" for word in self.rhs),)
