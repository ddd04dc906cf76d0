"""
Which messages a search finds, and their rank: the same on every database, with or without an index.

An app that keeps an index of the messages makes it the ``index`` in its ``AppConfig.ready``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from django.db.models import BooleanField, F, FloatField, Func, Lookup, Q, Subquery, Value
from django.db.models.functions import Coalesce, Concat, Left, Length, NullIf, Replace, StrIndex, Upper
from django.db.models.lookups import Exact

from chatmemory_django.core.excerpts import terms_of
from chatmemory_django.core.weighing import Key, Weighing, Written, words_of
from chatmemory_django.db.row_codec import unreadable_as

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models import QuerySet
    from django.db.models.expressions import Combinable
    from django.db.models.sql.compiler import SQLCompiler

    Sql = tuple[str, tuple[Any, ...]]

RANKED = 500
"""How many hits a search ranks, the newest ones: so a very common word costs no more than any other."""

RANKED_LENGTH = 4_000
"""How many characters of a message are considered for its rank."""

WEIGHED = 10_000
"""How many messages are read to weigh those with any of the words, the newest ones: this bounds its time."""

WEIGHED_LENGTH = 2_000
"""How many characters of each of them are read."""

MAX_WEIGHED = 100
"""How many messages with any of the words are found at most, the best ones."""

NEWEST_FIRST = ("-created_at", "-conversation_id", "-sequence")

_LONG = 1_000.0
"""In a text of this many characters, a word weighs half as much as in a very short one."""


def has(terms: Sequence[str]) -> Q:
    """Return the condition that a message contains all of *terms*, case-insensitively."""
    return Q(*(Q(text__icontains=term) for term in terms))


def rank_of(text: str, terms: Sequence[str]) -> Combinable:
    """
    Return an expression for how well a message matches a search for *text*, whose terms are *terms*.

    A term counts more the more often it occurs and the shorter the message is; more if it starts a word; and most if
    the terms occur together as they were typed.
    """
    weights = dict.fromkeys(terms, 1.0) | {f" {term}": 2.0 for term in terms}
    if len(terms) > 1:
        weights[text.strip()] = 4.0
    return _RankOf(weights)


class _RankOf(Func):
    """
    The sum of what each of *weights* adds, see ``rank_of``.

    As an expression of Django's, it has a hundred parts, which take longer to compile than the search.
    """

    output_field = FloatField()

    def __init__(self, weights: Mapping[str, float]) -> None:
        super().__init__("text")
        self.weights = weights

    def as_sql(self, compiler: Any, connection: Any, *args: Any, **context: Any) -> Any:  # as Django's
        beginning = Left(self.source_expressions[0], RANKED_LENGTH)
        length, of_length = compiler.compile(Length(beginning))
        needle, longer = (Upper(Value(each)) for each in _SOUGHT)
        # Longer by one character for each occurrence.
        replaced = Replace(Concat(Value(" "), Upper(beginning)), needle, longer)  # type: ignore[arg-type]
        found, of_found = compiler.compile(Length(replaced))
        missed = f"(%s + ({length} + %s) / %s)"
        of_missed = [1.0, *of_length, 1.0, _LONG]
        part = f"%s * {missed} / (({found} - ({length} + %s)) + {missed})"
        params: list[Any] = [sum(self.weights.values())]
        for wanted, weight in self.weights.items():
            sought = dict(zip(_SOUGHT, (wanted, f"{wanted}+"), strict=True))
            of_times = [sought.get(each, each) for each in of_found]
            params += [weight, *of_missed, *of_times, *of_length, 1.0, *of_missed]
        return " - ".join(["%s", *[part] * len(self.weights)]), tuple(params)


_SOUGHT = "\x1a", "\x1a+"
"""What stands for a word, and for a word and one character more, until the SQL is compiled for all of them."""


class _Checked(Func):
    """A column that is only checked: SQLite, which knows no numbers of rows, must not look up its value in an index."""

    arity = 1
    template = "%(expressions)s"

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **context: Any) -> Sql:
        sql, params = super().as_sql(compiler, connection, template="+%(expressions)s", **context)
        return sql, tuple(params)


def is_of(owner: Any) -> Exact:
    """
    Return the condition that a message is of *owner*, a primary key, where other conditions name few messages.

    With Django's own, SQLite reads all messages of the owner, to find these among them.
    """
    return Exact(_Checked("conversation__owner"), owner)


def weigh(
    scope: QuerySet[Any],
    text: str,
    beginning: Combinable,
    most: int = WEIGHED,
    *,
    owner: Any = None,
    owned: QuerySet[Any] | None = None,
) -> dict[Key, float]:
    """
    Return the weights of those messages of *scope* that answer *text* best, best first.

    The newest, *most* at most, are read, in Python, so that databases and indexes make no difference: of each its
    *beginning*, unless that is null or cannot be decrypted; of the conversations *owned* by *owner*, a primary key,
    those that were used last; without them, those that began last. If there are more messages, an index is asked which
    of them have the rarest words.
    """
    if not words_of(text):
        return {}
    bound = None if owned is None else _newest_of(owned, most)

    def read(messages: QuerySet[Any], most: int) -> list[Written]:
        rows = messages.order_by("-conversation_id", "-sequence").values_list("conversation_id", "sequence", beginning)
        with unreadable_as(""):
            return [(pk, sequence, (text or "")[:WEIGHED_LENGTH]) for pk, sequence, text in rows[:most]]

    if owner is not None:
        scope = scope.filter(Q(conversation__owner=owner) if bound is None else is_of(owner))
    written = read(scope if bound is None else scope.filter(bound), most)
    weighing = Weighing(text, written[::-1])
    beyond: list[Written] = []
    if index is not None and (bound is not None or len(written) == most):
        for word in weighing.rarest():
            beyond += read(scope.filter(index.candidates(scope, (word,))), RANKED)
    return weighing.best(MAX_WEIGHED, sorted(set(beyond)))


class WeightOf(Func):
    """The weight of a message that is among *weights*. A ``Case`` of Django's takes as long as the whole search."""

    output_field = FloatField()

    def __init__(self, weights: Mapping[Key, float]) -> None:
        super().__init__("conversation_id", "sequence")
        self.weights = weights

    def as_sql(self, compiler: Any, connection: Any, *args: Any, **context: Any) -> Any:  # as Django's
        if not self.weights:
            return compiler.compile(Value(0.0, FloatField()))
        (conversation, _), (sequence, _) = map(compiler.compile, self.source_expressions)
        when = f"WHEN {conversation} = %s AND {sequence} = %s THEN %s"
        params = [param for key, weight in self.weights.items() for param in (*key, weight)]
        return f"CASE {' '.join([when] * len(self.weights))} END", tuple(params)


def _newest_of(conversations: QuerySet[Any], most: int) -> Q | None:
    """Return a condition for *most* messages of *conversations*, by how many each has had; None if there are fewer."""
    counts = conversations.order_by("-active_hour", "-pk").values_list("pk", "next_sequence")
    whole: list[int] = []
    left = most
    for pk, next_sequence in counts[: most // 2]:  # a question and an answer each
        if next_sequence > left:
            return Q(conversation__in=whole) | Q(conversation=pk, sequence__gte=next_sequence - left)
        whole.append(pk)
        left -= next_sequence - 1
    return Q(conversation__in=whole) if len(whole) == most // 2 else None


class Rows(Subquery):
    """The rows of a queryset with several columns, as a table for SQL's FROM."""

    output_field = BooleanField()  # meaningless, but Django requires one of every expression
    template = "(%(subquery)s )"  # unlike that of Subquery, which would be unwrapped


class IsAmong(Lookup):
    """
    Whether the key on the left is among the rows on the right. MariaDB and MySQL do not support LIMIT in an IN
    subquery.
    """

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Sql:
        key, _ = self.process_lhs(compiler, connection)
        rows, params = compiler.compile(self.rhs)
        return f"({key}) IN (SELECT * FROM {rows} AS found)", tuple(params)  # noqa: S608  # only names


def is_among_newest(hits: QuerySet[Any]) -> IsAmong:
    """Return the condition that a message is among the newest of *hits*."""
    return IsAmong(F("pk"), Rows(hits.order_by(*NEWEST_FIRST).values_list("conversation_id", "sequence")[:RANKED]))


def place_of(wanted: str) -> Combinable:
    """
    Return an expression for where a message's text contains *wanted*, case-insensitively, or else its first term; 1 if
    the database finds neither, otherwise counted from 1.
    """
    upper = Upper("text")
    found = [NullIf(StrIndex(upper, Upper(Value(each))), Value(0)) for each in (wanted, *terms_of(wanted)[:1])]
    return Coalesce(*found, Value(1))


class Index(Protocol):
    """An index of the messages; a module may be one."""

    def candidates(self, scope: QuerySet[Any], terms: Sequence[str]) -> IsAmong:
        """Return the condition for the messages of *scope* with all of *terms* that are to be ranked."""

    def looks_up(self, scope: QuerySet[Any], terms: Sequence[str], condition: Q) -> bool:
        """
        Return whether those of the conversations *scope* that meet *condition*, since a message has all of *terms*, are
        found sooner by the messages of all conversations than one by one.
        """


index: Index | None = None
