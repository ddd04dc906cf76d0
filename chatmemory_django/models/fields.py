"""The kinds of columns and indexes that Django does not have."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from django.db import models, router, transaction
from django.db.backends.ddl_references import Statement
from django.db.models import Case, Expression, ExpressionWrapper, F, Func, Q, Value
from django.db.models.functions import Cast, Extract, Now
from django.db.models.lookups import Exact
from django.utils import timezone

from chatmemory_django.db import row_codec
from chatmemory_django.db.engines import Dialect, dialect
from chatmemory_django.db.row_codec import EncryptedError, Placed, Stored

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models import QuerySet
    from django.db.models.sql.compiler import SQLCompiler

_Field = TypeVar("_Field", bound="models.Field[Any, Any]")
_Model = TypeVar("_Model", bound=models.Model)


class SparseIndex(models.Index):
    """
    An index of the rows that meet *rows*.

    If the database does not support partial indexes, it has all rows, or is left out if it *must_be_partial*. Django
    does the former with an index that has a condition, but warns at each migration.
    """

    def __init__(self, *, rows: Q, must_be_partial: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.rows = rows
        self.must_be_partial = must_be_partial

    def create_sql(self, model: Any, schema_editor: Any, using: str = "", **options: Any) -> Any:
        is_partial = schema_editor.connection.features.supports_partial_indexes
        if self.must_be_partial and not is_partial:
            return Statement("DO 0")  # Django executes what this returns
        index = models.Index(fields=self.fields, name=self.name, condition=self.rows if is_partial else None)
        return index.create_sql(model, schema_editor, using, **options)

    def deconstruct(self) -> tuple[str, Sequence[Any], dict[str, Any]]:
        path, args, options = super().deconstruct()
        if self.must_be_partial:
            options["must_be_partial"] = True
        return path, args, {**options, "rows": self.rows}


class Hour(Func):
    """
    The number of the hour of a moment, counted from a moment that depends on the database.

    Generated columns require expressions that depend on nothing else, such as the time zone of the connection.
    """

    arity = 1
    output_field = models.IntegerField()

    def as_sql(self, compiler: Any, connection: Any, *args: Any, **context: Any) -> Any:  # as Django's
        template = _HOURS.get(dialect(connection))
        if template is not None:
            return super().as_sql(compiler, connection, template=template)
        moment = Cast(self.source_expressions[0], models.DateTimeField())
        parts = [compiler.compile(Extract(moment, each, datetime.UTC)) for each in ("year", "month", "day", "hour")]
        year, month, day, hour = (sql for sql, _ in parts)
        sql = f"((({year}) * 12 + {month}) * 31 + {day}) * 24 + {hour}"  # not without gaps, but in order
        return sql, tuple(param for _, params in parts for param in params)


_HOURS: dict[Dialect | None, str] = {
    Dialect.MYSQL: "TIMESTAMPDIFF(HOUR, '1970-01-01', %(expressions)s)",
    Dialect.POSTGRESQL: ("FLOOR(EXTRACT(EPOCH FROM %(expressions)s::timestamptz AT TIME ZONE 'UTC') / 3600)::integer"),
    Dialect.SQLITE: "CAST(JULIANDAY(%(expressions)s) * 24 AS INTEGER)",
}


class ExactCharField(models.CharField):
    """A string that is compared exactly on every database: by default, MySQL considers "a" and "A" equal."""

    def db_parameters(self, connection: BaseDatabaseWrapper) -> dict[str, Any]:
        parameters = super().db_parameters(connection)
        if dialect(connection) is Dialect.MYSQL:
            # Binary, and without the padding that makes "a" and "a " equal.
            is_mariadb = connection.mysql_is_mariadb  # type: ignore[attr-defined]
            parameters["collation"] = "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"
        return parameters


class WhoField(models.CharField):
    """
    Who did something: a user as text, *by* the primary key or by the name of then, no reference.

    It stays when the user is deleted, until what was done is erased; ``verify_chatmemory`` finds it.
    """

    def __init__(self, verbose_name: Any = None, *, by: Literal["key", "name"] = "key", **options: Any) -> None:
        super().__init__(verbose_name, **{"max_length": 255, **options})
        self.by = by

    def deconstruct(self) -> Any:
        name, _, args, options = super().deconstruct()
        return name, "django.db.models.CharField", args, options


class EncryptedTextField(models.TextField):
    """
    A text of people, in the database as the installed ``RowCodec`` encodes it, if there is one.

    The database can then only tell whether it is empty, so other lookups raise ``EncryptedError``. Empty texts are
    stored as they are. Without a codec, what is encoded is an ``UnreadableError``; one that *is_json* has to be parsed
    anyway, which fails then.
    """

    def __init__(self, *args: Any, is_json: bool = False, **options: Any) -> None:
        super().__init__(*args, **options)
        self.is_json = is_json

    def select_format(self, compiler: SQLCompiler, sql: str, params: Any) -> tuple[str, Any]:
        """See ``Field.select_format``, which is not documented: the column itself is selected with its place."""
        if row_codec.installed is None:
            return sql, params
        table = sql.removesuffix(compiler.connection.ops.quote_name(self.column or ""))
        if table == sql or not table.endswith(".") or set(table) & {" ", "("}:
            return sql, params  # of an expression, or of a query in this one, which has selected it
        return row_codec.installed.selected(self, table, compiler.connection), params

    def get_db_converters(self, connection: BaseDatabaseWrapper) -> list[Callable[..., Any]]:
        """See ``Field.get_db_converters``: Django asks for them once for each query."""
        converters: list[Callable[..., Any]] = super().get_db_converters(connection)
        codec = row_codec.installed
        if codec is None:
            return converters if self.is_json else [_plain, *converters]
        return [codec.decoder(self, connection.alias), *converters]

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:  # as Django's
        value = super().pre_save(model_instance, add)
        if row_codec.installed is None or isinstance(value, Stored) or hasattr(value, "resolve_expression"):
            return value
        return (text := self.get_prep_value(value)) and Placed.of(text, model_instance)  # it may be lazy

    def get_db_prep_save(self, value: Any, connection: BaseDatabaseWrapper) -> Any:
        value = super().get_db_prep_save(value, connection)
        codec = row_codec.installed
        if not value or isinstance(value, Stored):
            return value
        if codec is None:
            return row_codec.escaped(value) if isinstance(value, str) and not self.is_json else value
        if hasattr(value, "as_sql"):
            if not self._is_encoded(value):
                raise EncryptedError(f"{self.label} is encrypted, so the database cannot compute it: pass a text.")
            return value
        if not isinstance(value, Placed):
            raise EncryptedError(
                f"{self.label} is encoded for its row, which is not known here: use save(), bulk_create(), or "
                "bulk_update() and update() of a QuerySet of conversations or messages."
            )
        return codec.at(value.address._replace(using=connection.alias)).encode(value, self.label, value.row)

    def deconstruct(self) -> tuple[str, str, Sequence[Any], dict[str, Any]]:
        """See ``Field.deconstruct``. In migrations it is a text like any other: what it holds is not their concern."""
        name, _, args, options = super().deconstruct()
        if "default" in options:
            options["db_default"] = options["default"]  # as in ``with_default``
        return name, "django.db.models.TextField", args, options

    def get_lookup(self, lookup_name: str) -> Any:
        if row_codec.installed is None or lookup_name == "isnull":
            return super().get_lookup(lookup_name)
        if lookup_name == "exact":
            return _IsEmpty
        raise EncryptedError(f"{self.label} is encrypted, so the database cannot look it up by {lookup_name!r}.")

    def _is_encoded(self, expression: Any) -> bool:
        """Return whether *expression* is encoded, or a CASE of values of this field, which are: of ``bulk_update``."""
        if isinstance(expression, Cast):
            return self._is_encoded(*expression.source_expressions)
        if isinstance(expression, Case):
            return all(map(self._is_encoded, [expression.default, *(each.result for each in expression.cases)]))
        is_own = isinstance(expression, Value) and (not expression.value or expression.output_field == self)
        return is_own or isinstance(expression, Encoded)

    @property
    def is_plain(self) -> bool:
        """Whether the database has the text as it is: a subclass of a site may store it in another way."""
        return type(self) is EncryptedTextField and row_codec.installed is None

    @cached_property
    def label(self) -> str:
        """The name of the column for a ``Coder``."""
        return f"{self.model._meta.label_lower}.{self.name}"


def _plain(value: str | None, expression: Any, connection: Any) -> str | None:
    """Return the text that was read where no ``RowCodec`` is installed."""
    return row_codec.plain(value) if value and value[:3] == "enc" else value


class Encoded(Expression):
    """An expression for a text that is encoded before it is written."""


class WithPlace(Func):
    """The *column* of texts inside of another expression, such as CASE, which then has the place in its value."""

    def __init__(self, column: str) -> None:
        super().__init__(F(column))

    def as_sql(self, compiler: Any, connection: Any, *args: Any, **context: Any) -> Any:  # as Django's
        sql, params = compiler.compile(self.source_expressions[0])
        return self.output_field.select_format(compiler, sql, params)


class PlacedQuerySet(models.QuerySet[_Model]):
    """A QuerySet of rows whose texts are encoded for each row, where a ``RowCodec`` is installed."""

    def update(self, **columns: Any) -> int:
        """See ``QuerySet.update``. Of texts that are encoded, it writes those of one row."""
        if row_codec.installed is None:
            return super().update(**columns)
        self._for_write = True
        return row_codec.installed.update(self, columns)

    update.alters_data = True  # type: ignore[attr-defined]

    def bulk_update(self, objs: Iterable[_Model], fields: Iterable[str], batch_size: int | None = None) -> int:
        """See ``QuerySet.bulk_update``."""
        if row_codec.installed is None:
            return super().bulk_update(objs, fields, batch_size)
        objs, fields = tuple(objs), tuple(fields)
        self._for_write = True
        with transaction.atomic(using=self.db, savepoint=False):
            row_codec.installed.place(self, objs, fields)
            return super().bulk_update(objs, fields, batch_size)

    bulk_update.alters_data = True  # type: ignore[attr-defined]


def as_stored(column: str) -> ExpressionWrapper:
    """Return the *column* of texts as it is stored: nothing decodes it when it is read, and any lookup is possible."""
    return ExpressionWrapper(F(column), output_field=models.TextField())


class _IsEmpty(Exact):
    """Whether an encrypted text is empty."""

    def get_prep_lookup(self) -> Any:
        if self.rhs not in {"", None}:  # Django asks for NULL by another lookup, once it has made this one
            raise EncryptedError(f"{self.lhs.output_field.label} is encrypted, so it can only be compared with ''.")
        return super().get_prep_lookup()


def cascade_without_texts(collector: Any, field: Any, sub_objs: QuerySet[Any], using: str) -> None:
    """Do what ``CASCADE`` does, without the texts: who may delete a user need not have the key that decrypts them."""
    models.CASCADE(collector, field, without_texts(sub_objs), using)


def without_texts(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Return *rows* to be read without their texts, which may be encrypted."""
    return rows.defer(*names_of_texts(rows.model))


def names_of_texts(model: type[models.Model]) -> list[str]:
    """Return the names of the columns of *model* that have texts of people."""
    return [each.name for each in model._meta.concrete_fields if isinstance(each, EncryptedTextField)]


# Otherwise Django reads the objects to see whether there are any.
cascade_without_texts.lazy_sub_objs = True  # type: ignore[attr-defined]


class OwnerField(models.ForeignKey):
    """
    A foreign key to a user, with a constraint and what Django does when the user is deleted.

    If a site has its users in another database, neither is possible: then ``forget_owner`` takes their place.
    """

    def __init__(self, to: Any, on_delete: Any, **options: Any) -> None:
        super().__init__(to, on_delete, **options)
        self._declared = on_delete

    def to_key(self, value: Any) -> str | None:
        """Return *value*, the primary key of a user as any database returns it, as text."""
        return None if value is None else str(self.target_field.to_python(value))

    @property
    def db_constraint(self) -> bool:
        """Whether the users are in the same database as the conversations."""
        if not hasattr(self, "model"):
            return True
        return router.db_for_write(self.model) == router.db_for_write(self.remote_field.model)

    @db_constraint.setter
    def db_constraint(self, value: bool) -> None:
        """Ignore *value*: the router decides."""

    def deconstruct(self) -> tuple[str, str, Sequence[Any], dict[str, Any]]:
        """See ``Field.deconstruct``. The migration is the same for all sites."""
        name, path, args, options = super().deconstruct()
        options.pop("db_constraint", None)
        on_delete = models.CASCADE if self._declared is cascade_without_texts else self._declared
        return name, path, args, {**options, "on_delete": on_delete}


class UtcNow(Now):
    """The present moment as Django stores it: MariaDB's own is in the time zone of the connection."""

    def as_sql(self, compiler: Any, connection: Any, *args: Any, **context: Any) -> Any:  # as Django's
        if dialect(connection) is Dialect.MYSQL:
            context["template"] = "UTC_TIMESTAMP(6)"
        return super().as_sql(compiler, connection, *args, **context)


def with_default(field: _Field) -> _Field:
    """
    Return *field*, whose column in the database has its default, too, so that other programs can insert rows.

    Only migrations know of it, as ``db_default``: with it in the model, each INSERT of Django would also return the
    column.
    """
    own = field.deconstruct

    def deconstruct() -> Any:
        name, path, args, options = own()
        default = options["default"]
        if default is timezone.now:
            default = UtcNow()
        elif default is dict:
            default = Value({}, models.JSONField())
        return name, path, args, {**options, "db_default": default}

    # Not in a subclass: Django does not combine a field in an expression with one of its base class.
    field.deconstruct = deconstruct  # type: ignore[method-assign]
    return field
