"""
The statements of the hot path: to read a conversation, to read a memory, to write.

The ORM compiles each of them once for each database: a queryset is evaluated with ``Parameter`` in place of values, and
what it would execute is recorded, to be run with other values, adapted by their fields. Building and compiling it each
time would take longer than most of the statements take to run. Only PostgreSQL's combined UPDATE and INSERT, which the
ORM cannot express, is written as SQL here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cache, lru_cache
from itertools import compress
from operator import ne
from typing import Any, NamedTuple

import msgspec
from django.db import connections, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper
from django.db.models import Case, Exists, F, FilteredRelation, Func, OuterRef, Q, Subquery, Value, When
from django.db.models.expressions import Combinable, RawSQL
from django.db.models.functions import Cast, Greatest
from msgspec.structs import astuple

from chatmemory_django.db import row_codec
from chatmemory_django.db.engines import Dialect, combines, dialect
from chatmemory_django.db.moments import EARLIEST, to_moment
from chatmemory_django.db.row_codec import Address, Coder
from chatmemory_django.db.transactions import has_locked
from chatmemory_django.messages import MessageType
from chatmemory_django.models import Conversation, ExactCharField, Message
from chatmemory_django.models.columns import HistoryRow
from chatmemory_django.models.fields import Encoded, EncryptedTextField
from chatmemory_django.models.messages import TEXTS, texts_as_stored
from chatmemory_django.models.windows import Bounds
from chatmemory_django.stores.base import OtherRow
from chatmemory_django.stores.django.changes import Change, NewRow
from chatmemory_django.stores.django.rows import FRONT, STATE, FrontRow, Row, State, in_order, memory_rows

PLAIN = frozenset(
    {models.BooleanField, models.CharField, models.TextField, ExactCharField, models.BigAutoField}
    | {models.PositiveIntegerField, models.PositiveBigIntegerField, EncryptedTextField}
)
"""
Fields whose values every driver accepts unchanged, texts once they are encoded. A subclass may adapt its values, so it
is not among them.
"""

NEW_ROW: tuple[Any, ...] = tuple(field for field in Message._meta.concrete_fields if field.column)
"""The fields of a new row."""

MAX_PARAMETERS = 999
"""How many parameters a statement may have: with more, Django 5.2 splits it for SQLite."""


class Slot(str):
    """The name of a value of a recorded statement, and what adapts it for a connection, unless it is taken as it is."""

    adapt: Callable[[Any, Any], Any] | None


class Parameter(Encoded):
    """A value for *column* of *model*, passed as *name* when the statement is run."""

    def __init__(self, model: type[models.Model], column: str, name: str = "") -> None:
        field: Any = model._meta.get_field(column)
        super().__init__(output_field=field)
        self.slot = Slot(name or column)
        self.slot.adapt = _adapter(getattr(field, "target_field", field))

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, Any]:
        return "%s", [self.slot]


def _adapter(field: Any) -> Callable[[Any, Any], Any] | None:
    if field.__class__ is models.DateTimeField:  # what else it does with a moment, it does with a naive one
        return lambda moment, connection: connection.ops.adapt_datetimefield_value(moment)
    if field.__class__ is models.JSONField:  # the rest is for expressions
        return lambda value, connection: connection.ops.adapt_json_value(value, field.encoder)
    return None if field.__class__ in PLAIN else field.get_db_prep_save


class _Binding(NamedTuple):
    """How the parameters of a recorded statement get their values: there are up to 78, so this is no loop in Python."""

    names: list[str]
    """Of the values, in order; a constant has its index as its name."""
    constants: dict[str, Any]
    adapted: dict[str, Callable[[Any, Any], Any]]
    """What has to adapt values, by the names of these."""

    @classmethod
    def of(cls, parameters: Sequence[Any]) -> _Binding:
        """Return the binding of *parameters*, slots and constants."""
        slots = {index: each for index, each in enumerate(parameters) if isinstance(each, Slot)}
        return cls(
            [str(slots.get(index, index)) for index in range(len(parameters))],
            {str(index): each for index, each in enumerate(parameters) if index not in slots},
            {str(slot): slot.adapt for slot in slots.values() if slot.adapt is not None},
        )


class _Recorded(Exception):  # noqa: N818  # not an error: it aborts a SELECT after recording it
    pass


class Statement:
    """The statement that *run*, called with a database alias, has the ORM execute there."""

    def __init__(self, run: Callable[[str], object]) -> None:
        self._run = run
        self._recorded: dict[str, tuple[str, list[Any]]] = {}
        self._bindings: dict[str, _Binding] = {}

    def on(self, connection: BaseDatabaseWrapper) -> tuple[str, list[Any]]:
        """Return the SQL for the database of *connection*, and its parameters: slots and constants."""
        if connection.alias not in self._recorded:
            self._recorded[connection.alias] = self._record(connection)
        return self._recorded[connection.alias]

    def run(self, cursor: CursorWrapper, values: Mapping[str, Any]) -> int:
        """Run the statement with *values* for its slots; return the number of rows written, if it writes any."""
        connection = cursor.db
        binding = self._bindings.get(connection.alias)
        if binding is None:
            binding = self._bindings[connection.alias] = _Binding.of(self.on(connection)[1])
        named = {**binding.constants, **values}
        for name, adapt in binding.adapted.items():
            if (value := named[name]) is not None:
                named[name] = adapt(value, connection)
        cursor.execute(self._recorded[connection.alias][0], list(map(named.__getitem__, binding.names)))
        count: int = cursor.rowcount
        return count

    def _record(self, connection: BaseDatabaseWrapper) -> tuple[str, list[Any]]:
        found: list[tuple[str, list[Any]]] = []

        def instead(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            if not any(isinstance(each, Slot) for each in params or ()):
                return execute(sql, params, many, context)  # a statement of the connection itself, for example BEGIN
            found.append((sql, list(params)))
            if sql.lstrip("(").startswith("SELECT"):
                raise _Recorded
            return None

        # It is not executed, so nobody must count it as a query.
        is_logged, connection.force_debug_cursor = connection.force_debug_cursor, False
        wrappers, connection.execute_wrappers = connection.execute_wrappers, [instead]
        try:
            with suppress(_Recorded):
                self._run(connection.alias)
        finally:
            connection.force_debug_cursor, connection.execute_wrappers = is_logged, wrappers
        if len(found) != 1:  # the others would never be executed
            raise RuntimeError(f"The ORM must execute exactly one statement to record, not {len(found)}.")
        sql, parameters = found[0]
        if sql.startswith("UPDATE "):  # of one table; Django searches all of it for each run
            sql = sql.replace(f"{sql.split(' ', 2)[1]}.", "")
        return sql, parameters


@cache
def _read(*, owned: bool, locks: bool = False) -> Statement:
    """
    Return the SELECT of a conversation, with the front of its window unless it *locks* the conversation.

    It has a row for each message of the front, or one row without a message; where one statement ``combines``, one row
    that ends with an array.
    """

    def run(using: str) -> object:
        rows = Conversation.objects.using(using).filter(memory_id=Parameter(Conversation, "memory_id"))
        # SQLite's driver would parse a moment in each row, and few windows ask for it.
        columns = [Cast(each, models.TextField()) if each == "updated_at" else each for each in State._fields]
        if owned:
            owner = Parameter(Conversation, "owner")
            rows = rows.annotate(is_own=Case(When(owner=owner, then=Value(1)), default=Value(0)))
            columns.append("is_own")
        if locks:
            return list(rows.select_for_update().values_list(*columns))
        if combines(connections[using]):
            return list(rows.annotate(front=_front_as_array()).values_list(*columns, "front"))
        near = Q(messages__sequence__gte=F("window_start"), messages__sequence__lt=F("window_start") + Value(FRONT))
        rows = rows.annotate(
            front=FilteredRelation("messages", condition=near & Q(messages__superseded=False)),
            ai_payload=_ai_only("front__payload", type="front__type"),
        )
        front = ["front__sequence", "front__type", "ai_payload", "front__token_count", "front__counted_by"]
        return list(rows.values_list(*columns, *front))

    return Statement(run)


def _ai_only(payload: str, type: str) -> Case:
    return Case(When(**{type: MessageType.AI.value}, then=F(payload)))  # the payloads of others may be large


def _front_as_array() -> Any:
    """Return the front as one array of JSON, since PostgreSQL takes three times as long to plan a join."""
    from django.contrib.postgres.expressions import ArraySubquery  # needs psycopg

    start = OuterRef("window_start")
    near = Message.objects.filter(conversation_id=OuterRef("id"), superseded=False).order_by()
    near = near.filter(sequence__gte=start, sequence__lt=start + Value(FRONT))
    # Not JSONArray, whose casts take longer to plan.
    columns = ("sequence", "type", _ai_only("payload", "type"), "token_count", "counted_by")
    row = Func(*columns, function="jsonb_build_array", output_field=models.JSONField())
    return ArraySubquery(near.annotate(row=row).values("row"))


class _Memory(Statement):
    """
    The SELECT of a memory, as values for ``Row``, followed by *verbatim* if requested; if *owned*, only its owner's.

    With *state*, there is one more row, of the part ``STATE``: its payload is an array of JSON with the conversation's
    state and, if *owned*, with whether it is the owner's; and the memory is read whosever it is. Only with *pins* are
    pinned messages read that have left the window; without, such a row shows that there may be some.
    """

    def __init__(self, *, owned: bool, verbatim: bool = False, state: bool = False, pins: bool = False) -> None:
        super().__init__(self._select)
        self._owned = owned
        self._verbatim = verbatim
        self._state = state
        self._pins = pins

    def _select(self, using: str) -> object:
        connection, messages = connections[using], Message.objects.using(using).order_by()
        columns: list[Combinable]
        if combines(connection):
            messages = messages.filter(conversation_id=_column("id", connection))
            columns = [_column(each, connection) for each in _BOUNDS]
        else:
            messages = messages.filter(conversation__memory_id=Parameter(Conversation, "memory_id"))
            if self._owned and not self._state:
                messages = messages.filter(conversation__owner=Parameter(Conversation, "owner"))
            columns = [F(f"conversation__{each}") for each in _BOUNDS]
        start, system, summary = columns
        bounds, counter = Bounds(start, system, summary, int(self._pins)), Parameter(Message, "counted_by", "counter")
        before, *parts = memory_rows(messages, bounds, counter=counter, verbatim=self._verbatim, stored=True)
        return list(before.union(*parts, all=True).order_by())

    def _record(self, connection: BaseDatabaseWrapper) -> tuple[str, list[Any]]:
        rows, parameters = super()._record(connection)
        key, owner = (Parameter(Conversation, column).slot for column in ("memory_id", "owner"))
        where, is_own = (f"{_column(column, connection).sql} = %s" for column in ("memory_id", "owner"))
        table = connection.ops.quote_name(Conversation._meta.db_table)
        is_lateral, array = combines(connection), "NULL"
        if self._state:
            values = [_column(each, connection).sql for each in State._fields]
            if self._owned:
                values.append(f"coalesce({is_own}, false)")
                parameters = [*parameters, owner]
            array = _ARRAYS[dialect(connection)].format(", ".join(values))
        only: tuple[str, list[Any]] = ("", []) if self._state or not self._owned else (f" AND {is_own}", [owner])
        has_pins = f"{_column('pinned_count', connection).sql} > 0"
        if self._state or not self._pins:
            rows += f" UNION ALL SELECT NULL, NULL, {array}, NULL, 0, {STATE}, 0, false"
            rows += ", NULL" if self._verbatim else ""
        if is_lateral:
            rows += "" if self._state or self._pins else f" WHERE {has_pins}"
            rows = f"SELECT m.* FROM {table} c CROSS JOIN LATERAL ({rows}) m WHERE {where}{only[0]}"  # noqa: S608  # names
            return rows, [*parameters, key, *only[1]]
        if self._state or not self._pins:
            only = (f"{only[0]}{'' if self._state else f' AND {has_pins}'}", only[1])
            rows, parameters = f"{rows} FROM {table} c WHERE {where}{only[0]}", [*parameters, key, *only[1]]
        return _with_short_names(rows, connection), parameters


_memory = cache(_Memory)


@cache
def _rows(*, verbatim: bool, pins: bool) -> Statement:
    """Return the SELECT of a memory that is where a ``State`` has it, as ``_Memory`` selects one."""

    def run(using: str) -> object:
        messages = Message.objects.using(using).filter(conversation_id=Parameter(Conversation, "id")).order_by()
        start, system, summary = (Parameter(Conversation, column) for column in _BOUNDS)
        bounds, counter = Bounds(start, system, summary, int(pins)), Parameter(Message, "counted_by", "counter")
        before, *parts = memory_rows(messages, bounds, counter=counter, verbatim=verbatim, stored=True)
        return list(before.union(*parts, all=True).order_by())

    return Statement(run)


def _with_short_names(sql: str, connection: BaseDatabaseWrapper) -> str:
    """Return *sql*, which the ORM has made, with short names of tables: Django searches all of it for each run."""
    for model, alias in ((Message, "m"), (Conversation, "c")):
        table = connection.ops.quote_name(model._meta.db_table)
        sql = sql.replace(f"{table}.", f"{alias}.").replace(f" {table} c ", f" {table} ")
        sql = sql.replace(f" {table} ", f" {table} {alias} ")
    return re.sub(r' AS (["`])\w+\1', "", sql)  # its columns are read in their order


_ARRAYS: dict[Dialect | None, str] = {
    Dialect.POSTGRESQL: "jsonb_build_array({})::text",
    Dialect.MYSQL: "json_array({})",
    Dialect.SQLITE: "json_array({})",
}
"""How an array of JSON is built of columns."""

_BOUNDS = ("window_start", "pinned_sequence", "summary_sequence")
"""The columns of a conversation that define which messages are in its memory."""


def _column(name: str, connection: BaseDatabaseWrapper) -> RawSQL:
    """Return column *name* of the conversation that a SELECT of its memory calls ``c``."""
    field: Any = Conversation._meta.get_field(name)
    return RawSQL(f"c.{connection.ops.quote_name(field.column)}", ())  # noqa: S611  # only names


@lru_cache(64)  # one for each count
def _history(*, owned: bool, before: bool, count: int | None, locks: bool) -> Statement:
    """Return the SELECT of the last *count* messages of a history, or all, newest first, as ``HistoryRow`` values."""

    def run(using: str) -> object:
        conversation = Conversation.objects.using(using).filter(memory_id=Parameter(Conversation, "memory_id"))
        if owned:
            conversation = conversation.filter(owner=Parameter(Conversation, "owner"))
        # By its key as a value: with a join, PostgreSQL would sort the whole conversation for its last messages.
        rows = Message.objects.using(using).filter(conversation_id=Subquery(conversation.values("id")[:1])).history()
        if before:
            rows = rows.filter(sequence__lt=Parameter(Message, "sequence", "before"))
        if locks:
            rows = rows.select_for_update()
        return list(rows.order_by("-sequence").values_list(*texts_as_stored(HistoryRow._fields))[:count])

    return Statement(run)


@cache
def _move(columns: tuple[str, ...], *, owned: bool, client_message_ids: int) -> Statement:
    """Return the UPDATE of *columns* of a conversation that is as it was read and has no message with a new id."""

    def run(using: str) -> object:
        rows = Conversation.objects.using(using).filter(
            id=Parameter(Conversation, "id"),
            version=Parameter(Conversation, "version"),
            fence=Parameter(Conversation, "fence"),
        )
        if owned:
            rows = rows.filter(owner=Parameter(Conversation, "owner"))
        if client_message_ids:
            ids = [Parameter(Message, "client_message_id", f"new_id_{index}") for index in range(client_message_ids)]
            rows = rows.exclude(
                Exists(Message.objects.filter(conversation_id=OuterRef("id"), client_message_id__in=ids))
            )
        moved = {column: Parameter(Conversation, column) for column in columns}
        # Clocks may run backwards; the last activity must not.
        active_at = Greatest(F("updated_at"), Parameter(Conversation, "updated_at", "active_at"))
        return rows.update(version=F("version") + 1, updated_at=active_at, **moved)

    return Statement(run)


@cache
def _row_names(index: int) -> list[str]:
    """Return the names of the values of row *index* of an INSERT, in the order of ``NEW_ROW``."""
    shared = {"conversation": "id", "created_at": "now"}
    return [shared.get(field.name, f"{field.name}_{index}") for field in NEW_ROW]


def _row(index: int) -> dict[str, Parameter]:
    return {
        field.attname: Parameter(Message, field.name, name)
        for field, name in zip(NEW_ROW, _row_names(index), strict=True)
    }


@cache
def _insert(count: int) -> Statement:
    return Statement(
        lambda using: Message.objects.using(using).bulk_create([Message(**_row(index)) for index in range(count)])
    )


class _Beside(Statement):
    """The INSERT of an ``OtherRow`` of *model*, with values for the fields *names*, or its UPDATE *where* it is."""

    def __init__(self, model: Any, names: tuple[str, ...], where: tuple[str, ...]) -> None:
        super().__init__(lambda using: None)
        self._model = model
        self._names = names
        self._where = where

    def _record(self, connection: BaseDatabaseWrapper) -> tuple[str, list[Any]]:
        return self.sql(0, connection)

    def sql(self, index: int, connection: BaseDatabaseWrapper, source: str = "") -> tuple[str, list[Any]]:
        """Return the SQL that writes row *index*, for each row of *source* if there is one, and its slots."""
        quote, meta = connection.ops.quote_name, self._model._meta
        names = (*self._names, *(self._where or ("conversation",)))
        columns = [quote(meta.get_field(name).column) for name in names]
        slots: list[Any] = [Parameter(self._model, name, f"{name}_beside_{index}").slot for name in names]
        table, given = quote(meta.db_table), f" FROM {source}" if source else ""
        if self._where:
            equal, count = [f"{column} = %s" for column in columns], len(self._names)
            changes, where = ", ".join(equal[:count]), " AND ".join(equal[count:])
            return f"UPDATE {table} SET {changes}{given} WHERE {where}", slots  # noqa: S608  # names
        values = ", ".join(["%s"] * len(slots))
        rows = f"SELECT {values}{given}" if source else f"VALUES ({values})"
        return f"INSERT INTO {table} ({', '.join(columns)}) {rows}", slots


_beside = cache(_Beside)


def _beside_of(row: OtherRow) -> _Beside:
    return _beside(row.model, tuple(row.values), tuple(row.where))


class _MoveAndInsert(Statement):
    """
    The two in one statement for PostgreSQL: *count* rows are inserted if *moved* changes the conversation, and what is
    *beside* them is written.

    If it *completes* others, their turns end then. New rows have values in *columns*, and the defaults of ``NewRow``
    in the rest: constants take less time to send and to plan.
    """

    def __init__(
        self, moved: Statement, count: int, columns: frozenset[str], beside: tuple[_Beside, ...], *, completes: bool
    ) -> None:
        super().__init__(lambda using: None)
        self._moved = moved
        self._count = count
        self._completes = completes
        self._columns = columns
        self._beside = beside

    def _record(self, connection: BaseDatabaseWrapper) -> tuple[str, list[Any]]:
        update, parameters = self._moved.on(connection)
        quote = connection.ops.quote_name
        names = ", ".join(quote(field.column) for field in NEW_ROW)
        given = [field.name in self._columns or field.name not in _DEFAULTS for field in NEW_ROW]
        values = [
            "%s" if is_given else _LITERALS[type(_DEFAULTS[field.name])].format(_DEFAULTS[field.name])
            for field, is_given in zip(NEW_ROW, given, strict=True)
        ]
        source = f"SELECT {', '.join(values)} FROM moved"  # noqa: S608  # only placeholders and constants
        if self._count > 1:
            # Outside of an INSERT, PostgreSQL cannot infer the types of VALUES. A type with a length would truncate
            # text.
            types = [field.db_type(connection).partition("(")[0].replace("varchar", "text") for field in NEW_ROW]
            first = ", ".join(map("::".join, zip(values, types, strict=True)))
            rows = ", ".join([f"({first})", *[f"({', '.join(values)})"] * (self._count - 1)])
            source = f"SELECT added.* FROM moved, (VALUES {rows}) AS added"  # noqa: S608  # as above
        table = quote(Message._meta.db_table)
        moved = f"moved AS ({update} RETURNING 1)"
        if self._completes:
            which = "conversation_id = %s AND sequence = ANY(%s) AND NOT is_complete"
            moved += f", completed AS (UPDATE {table} SET is_complete = true FROM moved WHERE {which})"  # noqa: S608  # names
            key, sequences = Parameter(Message, "conversation", "id"), Parameter(Message, "sequence", "completes")
            parameters = [*parameters, key.slot, sequences.slot]
        for index, each in enumerate(self._beside):
            written, slots = each.sql(index, connection, "moved")
            moved += f", beside_{index} AS ({written})"
            parameters = [*parameters, *slots]
        sql = f"WITH {moved} INSERT INTO {table} ({names}) {source}"
        rows_of = [compress(_row(index).values(), given) for index in range(self._count)]
        return sql, [*parameters, *(parameter.slot for row in rows_of for parameter in row)]


_LITERALS = {type(None): "NULL", bool: "{}", str: "'{}'"}
"""How PostgreSQL writes the defaults of ``NewRow``, by their type."""

_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(NewRow) if type(field.default) in _LITERALS}
"""The columns of a new row that rarely differ from the default."""

_move_and_insert = cache(_MoveAndInsert)


def read(cursor: CursorWrapper, key: str, owner: object) -> tuple[State, bool, Sequence[FrontRow]] | None:
    """Read the conversation *key* without a lock, whether it belongs to *owner*, and the front of its window."""
    _read(owned=owner is not None).run(cursor, {"memory_id": key, "owner": owner})
    rows = cursor.fetchall()
    if not rows:
        return None
    first, end = rows[0], len(State._fields) + (owner is not None)
    is_array = combines(cursor.db)
    front = map(msgspec.json.decode, first[end]) if is_array else (row[end:] for row in rows if row[end] is not None)
    is_own = all(first[len(State._fields) : end])
    found = list(front) if is_own else []
    if row_codec.installed is not None and found:
        coder = row_codec.installed.at(_address(cursor, key, first[0], owner))
        found = _decoded(found, coder, {"payload": 2}, sequence=0, type=1)
    return State._make(first[: len(State._fields)]), is_own, list(map(FrontRow._make, sorted(found)))


def lock(cursor: CursorWrapper, key: str, owner: object) -> tuple[State, bool] | None:
    """Lock the conversation *key*, waiting for other writers, and read it as ``read`` does; not for SQLite."""
    _read(owned=owner is not None, locks=True).run(cursor, {"memory_id": key, "owner": owner})
    row = cursor.fetchone()
    return None if row is None else (State._make(row[: len(State._fields)]), all(row[len(State._fields) :]))


def read_memory(
    cursor: CursorWrapper, key: str, counter: str, owner: object, *, verbatim: bool = False
) -> Sequence[tuple[Any, ...]]:
    """
    Return the memory *key*, in its order, as tuples like ``Row``, followed by *verbatim* if requested.

    With an *owner*, only if it belongs to the owner.
    """
    rows = _run(cursor, key, counter, owner, verbatim=verbatim)
    if rows and rows[0][_PART] == STATE:
        rows = _run(cursor, key, counter, owner, verbatim=verbatim, pins=True)
    return _memory_of(rows, cursor, key, owner, verbatim=verbatim)


_PART = Row._fields.index("part")


def _run(cursor: CursorWrapper, key: str, counter: str, owner: object, **options: bool) -> Sequence[tuple[Any, ...]]:
    """Return the rows of ``_memory`` with these *options*, in order, with texts as they are stored."""
    _memory(owned=owner is not None, **options).run(cursor, {"memory_id": key, "counter": counter, "owner": owner})
    return in_order(cursor.fetchall())


def read_with_memory(
    cursor: CursorWrapper, key: str, counter: str, owner: object
) -> tuple[State, bool, Sequence[tuple[Any, ...]]] | None:
    """
    Read the conversation *key*, whether it belongs to *owner*, and its memory like ``read_memory``, at once.

    The memory is empty if the conversation has another owner. Only where there ``are_arrays``.
    """
    for pins in (False, True):
        rows = _run(cursor, key, counter, owner, state=True, pins=pins)
        if not rows:
            return None
        values = msgspec.json.decode(Row._make(rows[0]).payload or "")
        state, is_own = State._make(values[: len(State._fields)]), all(values[len(State._fields) :])
        if not state.pinned_count:
            break
    return state, is_own, _memory_of(rows[1:], cursor, key, owner) if is_own else []


def are_arrays(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the database of *connection* is known to build arrays of JSON."""
    return dialect(connection) in _ARRAYS


def read_rows(
    cursor: CursorWrapper, key: str, state: State, counter: str, *, verbatim: bool = False
) -> Sequence[tuple[Any, ...]]:
    """Return the memory of the conversation *key* with this *state*, like ``read_memory``, in no order."""
    statement = _rows(verbatim=verbatim, pins=state.pinned_count > 0)
    statement.run(cursor, {**state._asdict(), "counter": counter})
    return _memory_of(cursor.fetchall(), cursor, key, None, verbatim=verbatim)


def read_history(
    cursor: CursorWrapper, key: str, owner: object, before: int | None, count: int | None
) -> Sequence[tuple[Any, ...]]:
    """
    Return the last *count* messages of the history *key*, or all of them, newest first, as tuples like ``HistoryRow``.

    With *before*, only messages before that sequence; with an *owner*, only if it belongs to the owner.
    """
    locks = has_locked(cursor.db, key)
    statement = _history(owned=owner is not None, before=before is not None, count=count, locks=locks)
    statement.run(cursor, {"memory_id": key, "owner": owner, "before": before})
    rows: list[tuple[Any, ...]] = cursor.fetchall()
    if row_codec.installed is None or not rows:
        return rows
    coder = row_codec.installed.at(_address(cursor, key, rows[0][-1], owner))
    return _decoded(rows, coder, {"text": 2, "payload": 3, "verbatim": 4}, sequence=0, type=1)


def move(cursor: CursorWrapper, change: Change, owner: object, now: datetime) -> bool:
    """Write the conversation's row as *change* defines it, if it is still as it was read; return whether it was."""
    statement, values = _moved(change, owner, now)
    return statement.run(cursor, values) > 0


def insert(
    cursor: CursorWrapper, conversation_id: int, rows: Sequence[NewRow], now: datetime, coder: Coder | None
) -> None:
    """Insert *rows*, few enough for one statement, as *coder* encodes them."""
    values = {"id": conversation_id, "now": now}
    _insert(len(rows)).run(cursor, _with_rows(values, rows, coder))


def write_beside(cursor: CursorWrapper, conversation_id: int, rows: Sequence[OtherRow]) -> None:
    """Write *rows*; new ones are of that conversation, which is locked."""
    for row in rows:
        _beside_of(row).run(cursor, _values_beside(conversation_id, [row]))


def _values_beside(conversation_id: int, rows: Sequence[OtherRow]) -> dict[str, Any]:
    """Return the values for ``_Beside``."""
    return {
        f"{name}_beside_{index}": value
        for index, row in enumerate(rows)
        for name, value in {"conversation": conversation_id, **row.values, **row.where}.items()
    }


def move_and_insert(
    cursor: CursorWrapper,
    change: Change,
    owner: object,
    now: datetime,
    beside: Sequence[OtherRow],
    coder: Coder | None,
) -> bool:
    """
    Do both in one statement, for PostgreSQL; *change* has rows, few enough for one statement, which *coder* encodes.

    The rows *beside* are written with them; see ``write_beside``.
    """
    moved, values = _moved(change, owner, now)
    values = _with_rows(values, change.rows, coder)
    columns = frozenset(
        column for column, default in _DEFAULTS.items() if any(getattr(row, column) != default for row in change.rows)
    )
    values["completes"] = list(change.completes)
    values.update(_values_beside(change.before.id, beside))
    others = tuple(map(_beside_of, beside))
    statement = _move_and_insert(moved, len(change.rows), columns, others, completes=bool(change.completes))
    return statement.run(cursor, values) > 0


_KEPT = State._fields.index("next_sequence")
"""How many fields of a state a change leaves to others."""


def _moved(change: Change, owner: object, now: datetime) -> tuple[Statement, dict[str, Any]]:
    """Return the statement that writes the conversation's row as *change* defines it, and its values."""
    # Only what changes, in few variants: psycopg remembers no statement that has more than 50 parameters.
    columns = tuple(compress(State._fields[_KEPT:], map(ne, change.before[_KEPT:], change.after[_KEPT:])))
    ids = {f"new_id_{index}": each for index, each in enumerate(change.client_message_ids)}
    active_at = now if change.is_activity else to_moment(EARLIEST)  # the later of this and the stored value is kept
    values = {"version": change.before.version, "owner": owner, "active_at": active_at, "now": now}
    statement = _move(columns, owned=owner is not None, client_message_ids=len(ids))
    return statement, {**change.after._asdict(), **values, **ids}


@cache
def _names_of(index: int) -> list[str]:
    return [f"{name}_{index}" for name in NewRow.__struct_fields__]


def _with_rows(values: dict[str, Any], rows: Sequence[NewRow], coder: Coder | None) -> dict[str, Any]:
    """Add the values of *rows*, as *coder* encodes them, to *values*, and return it."""
    for index, row in enumerate(rows):
        values.update(zip(_names_of(index), astuple(row), strict=True))
        if coder is not None:
            for column, label in TEXTS.items():
                if text := getattr(row, column):
                    values[f"{column}_{index}"] = coder.encode(text, label, (row.sequence, row.type))
    return values


def _memory_of(
    rows: Sequence[tuple[Any, ...]], cursor: CursorWrapper, key: str, owner: object, *, verbatim: bool = False
) -> Sequence[tuple[Any, ...]]:
    """Return *rows* of the memory *key*, as ``_memory`` selects them, decoded."""
    if row_codec.installed is None or not rows:
        return rows
    columns = {"text": 1, "payload": 2, **({"verbatim": len(Row._fields)} if verbatim else {})}
    conversation = Row._make(rows[0][: len(Row._fields)]).conversation_id
    coder = row_codec.installed.at(_address(cursor, key, conversation, owner))
    return _decoded(rows, coder, columns, sequence=4, type=0)


def _address(cursor: CursorWrapper, key: str, conversation: int, owner: object) -> Address:
    """Return where the rows of the conversation *key* are: whose they must be, if it was asked for an *owner*."""
    return Address(cursor.db.alias, conversation, key, ... if owner is None else str(owner))


def _decoded(
    rows: Sequence[Sequence[Any]], coder: Coder, columns: Mapping[str, int], *, sequence: int, type: int
) -> list[Any]:
    """Return *rows*, whose *sequence* and *type* have these indexes, with the *columns* as *coder* decodes them."""
    parts: list[Sequence[Any]] = list(zip(*rows, strict=True))
    sequences, types = parts[sequence], parts[type]
    for column, index in columns.items():
        stored, label = parts[index], TEXTS[column]
        if all(stored):
            parts[index] = coder.decode_all(stored, label, sequences, types)
        elif any(stored):
            some, *places = (list(compress(each, stored)) for each in (stored, sequences, types))
            texts = iter(coder.decode_all(some, label, *places))
            parts[index] = [each and next(texts) for each in stored]
    return list(zip(*parts, strict=True))
