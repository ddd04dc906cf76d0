"""
Tables as a release left them: their rows in JSON, the same for each database, and the migrations that make them.

Rows are read and written as the models were at a migration, so that what a newer version changes has no part in it, and
encrypted texts stay as they are stored.
"""

import ast
import hashlib
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.apps import apps
from django.conf import settings
from django.contrib.auth.models import User
from django.core.management.color import no_style
from django.db import connection, models, transaction
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.recorder import MigrationRecorder

import chatmemory_django
from chatmemory_django.codec import messages_from_json, messages_to_json
from chatmemory_django.models import Conversation
from chatmemory_django.stores.django import DjangoChatMemoryStore

PACKAGE = Path(chatmemory_django.__path__[0])

Json = dict[str, Any]

PLAIN = bool, int, float, str, dict, list, type(None)


def migrations() -> dict[str, str]:
    """Return the digests of the package's migrations, also of apps that are not installed, by their paths."""
    files = (path for path in PACKAGE.rglob("migrations/*.py") if path.name != "__init__.py")
    return {path.relative_to(PACKAGE).as_posix(): digest(path.read_text()) for path in sorted(files)}


def digest(source: str) -> str:
    """Return what is the same for two texts of a migration that do the same, however they are written."""
    return hashlib.sha256(ast.unparse(ast.parse(source)).encode()).hexdigest()


def dump() -> Json:
    """Return what the database and the storage of files hold, and what people read there."""
    tables = {model: list(map(_values, _rows(model))) for model in _models(MigrationExecutor(connection))}
    return {
        "migrations": migrations(),
        "applied": sorted(key for key in MigrationRecorder(connection).applied_migrations() if key[0] in _labels()),
        "users": dict(User.objects.order_by("pk").values_list("pk", "username")),
        "tables": {model._meta.label: rows for model, rows in tables.items()},
        "unfilled": [column for model, rows in tables.items() for column in _unfilled(model, rows)],
        "files": {
            str(path.relative_to(settings.FILES)): b64encode(path.read_bytes()).decode()
            for path in sorted(Path(settings.FILES).rglob("*"))
            if path.is_file()
        },
        "read": read(),
    }


def _unfilled(model: type[models.Model], rows: list[Json]) -> Iterator[str]:
    """Yield the columns of *model* that have nothing but their defaults in *rows*."""
    for field in model._meta.concrete_fields:
        if not field.generated and all(row[field.attname] in (None, "", {}, field.get_default()) for row in rows):
            yield f"{model._meta.label}.{field.attname}"


def make_tables(dumped: Json) -> None:
    """Make the tables as the migrations of *dumped* do, in an empty database; those of other apps as they are today."""
    executor = MigrationExecutor(connection)
    others = [node for node in executor.loader.graph.leaf_nodes() if node[0] not in _labels()]
    executor.migrate([*map(tuple, dumped["applied"]), *others])


def load(dumped: Json) -> None:
    """Write what *dumped* holds into the tables that ``make_tables`` has made, and into the storage."""
    for name, content in dumped["files"].items():
        path = Path(settings.FILES, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b64decode(content))
    User.objects.bulk_create(User(pk=pk, username=name) for pk, name in dumped["users"].items())
    known = {model._meta.label: model for model in _models(MigrationExecutor(connection))}
    filled = [(known[label], rows) for label, rows in dumped["tables"].items()]
    with transaction.atomic(), connection.constraint_checks_disabled():
        for model, rows in filled:
            fields = {field.attname: field for field in model._meta.concrete_fields}
            for field in fields.values():
                field.auto_now = field.auto_now_add = False
            model._base_manager.bulk_create(
                model(**{name: fields[name].to_python(value) for name, value in row.items()}) for row in rows
            )
        with connection.cursor() as cursor:
            for sql in connection.ops.sequence_reset_sql(no_style(), [User, *known.values()]):
                cursor.execute(sql)


def changed(dumped: Json) -> Iterator[str]:
    """Yield what is no longer in the tables as *dumped* has it. Columns that are new, or gone, are left out."""
    known = {model._meta.label: model for model in _models(MigrationExecutor(connection))}
    for label, rows in dumped["tables"].items():
        if label not in known:
            continue
        now = list(map(_values, _rows(known[label])))
        kept = [{name: value for name, value in row.items() if name in now[0]} for row in rows] if now else rows
        found = [{name: row[name] for name in kept[0]} for row in now if kept]
        if sorted(found, key=str) != sorted(kept, key=str):  # each database has an order of its own for UUIDs
            yield label
    seen = read()
    yield from (
        f"{name}, as it is read"
        for name, each in dumped["read"].items()
        if _read_again(each) != _read_again(seen[name])
    )


def read() -> dict[str, Json]:
    """Return each conversation, by its memory id, as people read it."""
    return {
        each.memory_id: {
            "owner": each.owner and each.owner.get_username(),
            "title": each.title,
            "metadata": each.metadata,
            "is_archived": each.is_archived,
            "memory": messages_to_json(DjangoChatMemoryStore(owner=each.owner).get_messages(each.memory_id)),
            "history": [
                [row.sequence, row.created_at.isoformat(), row.metadata, messages_to_json([row.chat_message])]
                for row in each.history(all_branches=True).order_by("sequence")
            ],
            "path": list(each.history().order_by("sequence").values_list("sequence", flat=True)),
        }
        for each in Conversation.objects.select_related("owner").order_by("pk")
    }


def _read_again(given: Json) -> Json:
    """Return *given* with messages in place of their JSON, which a version may write in another way."""
    history = [[*row[:-1], messages_from_json(row[-1])] for row in given["history"]]
    return {**given, "memory": messages_from_json(given["memory"]), "history": history}


def _models(executor: MigrationExecutor) -> list[type[models.Model]]:
    """Return the package's models as they are after the migrations that have been applied."""
    state = executor.loader.project_state(list(executor.loader.applied_migrations)).apps
    found = [each for each in state.get_models() if each._meta.app_label in _labels() and not each._meta.proxy]
    return sorted(found, key=lambda model: model._meta.label)


def _rows(model: type[models.Model]) -> models.QuerySet[Any]:
    return model._base_manager.order_by("pk")


def _values(row: models.Model) -> Json:
    fields = [field for field in row._meta.concrete_fields if not field.generated]
    found = {field.attname: (field, field.value_from_object(row)) for field in fields}
    return {
        name: value if isinstance(value, PLAIN) else field.value_to_string(row)
        for name, (field, value) in found.items()
    }


def _labels() -> set[str]:
    return {config.label for config in apps.get_app_configs() if config.name.partition(".")[0] == PACKAGE.name}
