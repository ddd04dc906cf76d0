"""
What other apps keep of conversations, outside of their messages: streams of answers, records, and the like.

An app that keeps such copies registers in its ``AppConfig.ready`` how it deletes them. What erases conversations, or
removes messages from them, calls ``forget_copies``; what is left of them for a time, ``prune_chatmemory`` deletes.

An app may also keep something of a user that belongs to no conversation: it registers that with
``belongs_to_owners``. And it may forbid that anything of a conversation is erased: it registers a ``Hold``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from django.db import DEFAULT_DB_ALIAS
from django.db.models import DO_NOTHING, F, Model, ProtectedError
from django.db.models.signals import pre_delete

from chatmemory_django.db.batches import in_parts
from chatmemory_django.db.row_codec import UnreadableError

PAGE = 1_000
"""How many rows one query reads for an export."""


class Forget(Protocol):
    """
    Deletes what an app keeps of *conversations*, memory ids by key, in the database *using*.

    It is called in the transaction that erases the conversations or removes messages from them. What is not stored in
    that database has to be deleted after the commit, with ``transaction.on_commit(…, robust=True)``. It may be called
    again for the same conversations.

    If *erased*, nothing may be left, and what is being written now must stop. Otherwise single messages were removed:
    nothing may be left that may hold their text, but an answer that is being generated goes on.
    """

    def __call__(self, using: str, conversations: Mapping[int, str], *, erased: bool) -> None: ...


class Hold(Protocol):
    """
    Returns the objects that forbid to erase anything of the conversations with these *keys* in the database *using*,
    or anything of *owner*, the primary key of a user.

    It is called in the transaction that would erase it, before it does.
    """

    def __call__(self, using: str, keys: Collection[int], owner: Any = None) -> Collection[Model]: ...


EVERYBODY: Final = object()
"""Stands for every user, and nobody: see ``OfOwners.exported``."""


class OfOwners(NamedTuple):
    """What an app keeps of users, and in no message: the rows of a *model* with an ``OwnerField``, ``owner``."""

    model: type[Model]
    export: Callable[[Any], Mapping[str, Any] | None] | None = None
    """Returns what an export has of a row, as JSON has it; None if exports have none of it, or of them all."""
    load: Callable[[Any, Mapping[str, Any], str], object] | None = None
    """
    Stores for a user what was exported, in the database named, unless that was done before. ``ValueError`` and
    ``msgspec.ValidationError`` state what is wrong with it.
    """
    related: Mapping[str, str] = MappingProxyType({})
    """Which attributes of a row *export* reads from rows that it refers to, by their names: they are read with it."""

    @property
    def name(self) -> str:
        """What it is called in exports, and in receipts."""
        return self.model._meta.label_lower

    @property
    def is_of_site(self) -> bool:
        """Whether the rows are records of the site, which may be about nobody."""
        return bool(self.model._meta.get_field("owner").null)

    def exported(
        self, owner: object, using: str, refused: Callable[[Any, Exception], object] | None = None
    ) -> Iterator[tuple[Any, Mapping[str, Any]]]:
        """
        Yield what an export has of the rows of *owner*, the primary key of a user or ``EVERYBODY``, in the database
        *using*, each behind the key of its owner.

        They come in the order of their model. *refused* receives each that cannot be decrypted, without its texts, and
        why, and the others go on; None raises that.
        """
        rows: Any = self.model._default_manager.using(using).order_by(*self.model._meta.ordering or (), "pk")
        rows = rows if owner is EVERYBODY else rows.filter(owner=owner)
        for keys in in_parts([] if self.export is None else list(rows.values_list("pk", flat=True)), PAGE):
            yield from self._contents(rows, keys, refused)

    def _contents(
        self, rows: Any, keys: Sequence[Any], refused: Callable[[Any, Exception], object] | None
    ) -> list[tuple[Any, Mapping[str, Any]]]:
        export: Any = self.export
        found = rows.filter(pk__in=keys).annotate(**{name: F(column) for name, column in self.related.items()})
        try:
            contents = [(row.owner_id, export(row)) for row in found]
            return [(key, content) for key, content in contents if content is not None]
        except UnreadableError as exc:
            if refused is None:
                raise
            if len(keys) > 1:
                return [each for key in keys for each in self._contents(rows, [key], refused)]
            for row in rows.filter(pk=keys[0]).only("pk"):
                refused(row, exc)
            return []


class Pruning(NamedTuple):
    """
    What ``prune_chatmemory`` does for an app in each run, whether its *option*, such as "--sum-calls", is given or not.

    *prune* is called with the database, the value of the option (a timedelta or None if it *takes_days*, otherwise
    whether it is given), and whether it is a dry run, in which it deletes nothing. It may yield texts to print, and
    None after each of its *steps*, of which progress is shown if they have a name. With the option alone, no
    conversation is pruned.
    """

    prune: Callable[[str, Any, bool], Iterable[str | None] | None]
    option: str = ""
    help: str = ""
    takes_days: bool = False
    steps: str = ""


class Remnant(NamedTuple):
    """What is left of erased conversations."""

    where: str
    """In which place, without any text."""
    number: int | None
    """How many of it; None if that cannot be seen."""


FindRemnants: TypeAlias = Callable[[str], Iterable[Remnant]]
"""Yields what is left, outside of the tables, of conversations that are no longer in the given database."""


_registered: list[Forget] = []
_of_rows: list[Forget] = []
outliving: list[type[Model]] = []
"""What ``outlives`` registered."""
of_owners: list[OfOwners] = []
"""What ``belongs_to_owners`` registered."""
exported: list[OfOwners] = []
"""What ``exports`` registered."""
prunings: list[Pruning] = []
"""What ``prunes`` registered."""
remnant_finders: list[FindRemnants] = []
"""What ``finds_remnants`` registered."""
_holds: list[Hold] = []


def keeps_copies(forget: Forget, *, of_rows: bool = False) -> None:
    """
    Register *forget*, which deletes what an app keeps of conversations; *of_rows* is whether that refers to rows of
    messages, and goes when these are pruned.
    """
    if forget not in _registered:
        _registered.append(forget)
        if of_rows:
            _of_rows.append(forget)


def outlives(model: type[Model]) -> None:
    """Register *model*, whose rows outlive their ``conversation``, and then name none."""
    if model not in outliving:
        outliving.append(model)


def exports(*added: OfOwners) -> None:
    """Register what exports have besides conversations, in this order."""
    exported.extend(each for each in added if each not in exported)


def belongs_to_owners(*added: OfOwners) -> None:
    """
    Register what an app keeps of users, in this order. It is erased with what else is stored of a user, exported with
    it, and never deleted while a hold is on its owner.
    """
    exports(*added)
    for each in added:
        if each not in of_owners:
            of_owners.append(each)
            owner: Any = each.model._meta.get_field("owner")
            if not owner.db_constraint:
                owner.remote_field.on_delete = DO_NOTHING
            pre_delete.connect(_refuse_of_owner, sender=each.model)


def prunes(*added: Pruning) -> None:
    """Register what ``prune_chatmemory`` does for an app, in this order."""
    prunings.extend(each for each in added if each not in prunings)


def finds_remnants(find: FindRemnants) -> None:
    """Register *find*, which finds what is left of erased conversations elsewhere than in the tables of an app."""
    if find not in remnant_finders:
        remnant_finders.append(find)


def holds_back(hold: Hold) -> None:
    """Register *hold*, which may forbid to erase conversations, or messages in them."""
    if hold not in _holds:
        _holds.append(hold)


def is_held(using: str, key: int) -> bool:
    """Return whether nothing may be erased of the conversation *key* in the database *using*."""
    return any(hold(using, [key]) for hold in _holds)


def refuse_held(using: str, keys: Collection[int]) -> None:
    """Raise ``ProtectedError`` if nothing may be erased of one of the conversations *keys*."""
    if found := {each for hold in _holds for each in hold(using, keys)}:
        raise ProtectedError("Nothing of these conversations may be erased: other objects protect them.", found)


def refuse_held_owner(using: str, owner: Any) -> None:
    """Raise ``ProtectedError`` if nothing may be erased of *owner*, the primary key of a user."""
    if found := {each for hold in _holds for each in hold(using, (), owner)}:
        raise ProtectedError("Nothing of this user may be erased: other objects protect it.", found)


def _refuse_of_owner(sender: type[Model], instance: Any, using: str = DEFAULT_DB_ALIAS, **kwargs: Any) -> None:
    refuse_held_owner(using, instance.owner_id)


def forget_rows(using: str, conversations: Mapping[int, str]) -> None:
    """Delete what refers to rows of messages that were pruned from *conversations*; raise as ``refuse_held`` does."""
    refuse_held(using, conversations)
    for forget in _of_rows:
        forget(using, conversations, erased=False)


def forget_copies(using: str, conversations: Mapping[int, str], *, erased: bool = False) -> None:
    """
    Delete all copies of *conversations*, memory ids by key, in the database *using*; call it in the transaction that
    changes them.

    They are *erased*, or messages were removed from them: then ``ProtectedError`` is raised if one is held.
    """
    if not erased:
        refuse_held(using, conversations)
    if conversations:
        for forget in _registered:
            forget(using, conversations, erased=erased)
