"""
The settings: one dict named ``CHATMEMORY``. Each class here, and in the ``conf`` of an app, declares a section of it.

A setting has its name, type, default and ``Rule`` there, and nowhere else: checks and the tests of the documentation
use them. ``current()`` returns a section as it is set. What reads a setting does not validate it; system checks do.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Annotated, Any, ClassVar, NamedTuple, Self, get_type_hints

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004  # Django's name for it
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

MAX_DAYS = 100_000
"""The largest number of days of a period: no database supports dates that long ago."""

RATE = re.compile("([1-9][0-9]*)/(s|sec|second|m|min|minute|h|hour|d|day)")


class Rule(NamedTuple):
    """What a value *must be*, in words and as a test; a check with the id beside it reports what is not."""

    must_be: str
    is_met: Callable[[object], bool]
    hint: str = ""
    """What to do; by default, to remove the setting."""


def one_of(*values: str, hint: str = "") -> Rule:
    """Return the rule that a value is one of *values*."""
    return Rule(f"one of {', '.join(map(repr, values))}", lambda value: value in values, hint)


def path_of(base: str) -> Rule:
    """Return the rule that a value is the path of the class at *base*, or of a subclass."""

    def is_met(path: object) -> bool:
        found = imported(path)
        return isinstance(path, str) and isinstance(found, type) and issubclass(found, import_string(base))

    return Rule(f"the path of a subclass of {base.rpartition('.')[2]}", is_met)


def is_rate(rate: object) -> bool:
    """Return whether *rate* is valid, for example "60/min", or None for no limit."""
    return rate is None or (isinstance(rate, str) and RATE.fullmatch(rate) is not None)


def _is_count(value: object) -> bool:
    return type(value) is int and value > 0


def _is_period(value: object) -> bool:
    if type(value) is int:
        return 1 <= value <= MAX_DAYS
    return value is None or (isinstance(value, timedelta) and timedelta() < value <= timedelta(days=MAX_DAYS))


def _are_rates(rates: object) -> bool:
    return isinstance(rates, Mapping) and all(
        (name in RATES or not get_close_matches(str(name), RATES))  # a site may define its own scopes
        and is_rate(rate)
        for name, rate in rates.items()
    )


FORMATS = ("langchain4j", "openai")
"""Those of messages in REST."""

RATES: Mapping[str, str | None] = {
    "read": "600/min",
    "write": "120/min",
    "fork": "20/min",
    "export": "20/min",
    "import": "20/min",
    "usage": "60/min",
    "sign_in": "20/min",
}
_RATE_HINT = "A rate is '10/sec', '600/min', '100/hour' or '1000/day'; use None for no limit."

Switch = Annotated[bool, Rule("True or False", lambda value: isinstance(value, bool))]
Count = Annotated[int, Rule("a whole number above 0", _is_count)]
CountOrNone = Annotated[int | None, Rule("a whole number above 0, or None", lambda v: v is None or _is_count(v))]
Whole = Annotated[int, Rule("a whole number of at least 0", lambda value: type(value) is int and value >= 0)]
Rate = Annotated[str | None, Rule("a rate or None", is_rate, _RATE_HINT)]
Period = Annotated[
    timedelta | int | None,
    Rule(
        f"a timedelta above 0, a whole number of days from 1 to {MAX_DAYS:,}, or None for never",
        _is_period,
        "For example 365, or timedelta(hours=12).",
    ),
]

_NOTHING: Mapping[str, Any] = {}


class Section:
    """
    A dict in ``CHATMEMORY``, or that itself: each attribute in capital letters is a setting, with its default.

    An instance has what the site has set, and for the rest the defaults.
    """

    key: ClassVar[str] = ""
    """Its key in ``CHATMEMORY``; empty for that itself, of which an app may declare a part."""
    ids: ClassVar[tuple[str, ...]]
    """The ids of the checks that it is a dict, of its names, and of its values that have none of their own."""
    hint: ClassVar[str]
    """What to write, if it is not a dict."""
    _given: Mapping[str, Any] = _NOTHING  # with what is no setting

    @classmethod
    def current(cls) -> Self:
        """Return it as the site has set it: the same instance until the settings change, be it in place."""
        given = getattr(settings, "CHATMEMORY", _NOTHING)
        if cls.key:
            given = given.get(cls.key) or _NOTHING
        read, section = _read.get(cls, _UNREAD)
        if given != read:
            try:
                copy = dict(given)  # another thread may change it in place at any moment
            except (TypeError, ValueError):
                kind = type(given).__name__
                del given, read  # which have keys, and no report is to show them
                raise ImproperlyConfigured(f"CHATMEMORY[{cls.key!r}] must be a dict, not {kind}.") from None
            section = cls._of(copy)
            _read[cls] = copy, section
        return section  # type: ignore[no-any-return]

    @classmethod
    def _of(cls, given: Mapping[str, Any]) -> Self:
        section = cls()
        vars(section).update({name: given[name] for name in cls.defaults() if name in given})
        section._given = given
        return section

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return the defaults of its settings, by name."""
        return {name: getattr(cls, name) for name in get_type_hints(cls) if name.isupper()}

    @classmethod
    def readable(cls) -> Self | None:
        """Return it for checks: never the current one, in which 1 may stand for True; None if it is not a dict."""
        given: object = getattr(settings, "CHATMEMORY", _NOTHING)
        if cls.key and isinstance(given, Mapping):
            given = given.get(cls.key, _NOTHING)
        return cls._of(given) if isinstance(given, Mapping) else None

    @classmethod
    def check(cls, others: Callable[[Self], Iterable[CheckMessage]] = lambda section: ()) -> list[CheckMessage]:
        """Check that it is a dict, its names, and its values by their rules; then what *others* check."""
        where = f"CHATMEMORY[{cls.key!r}]" if cls.key else "CHATMEMORY"
        if (section := cls.readable()) is not None:
            return [*section._unknown(where), *section.broken(), *others(section)]
        given: object = settings.CHATMEMORY
        if cls.key and not isinstance(given, Mapping):
            return []  # another check reports this
        kind = type(given[cls.key] if isinstance(given, Mapping) else given).__name__
        return [Error(f"{where} must be a dict, not {kind}.", hint=cls.hint, id=cls.ids[0])]

    def _unknown(self, where: str) -> Iterator[CheckMessage]:
        others = () if self.key else Section.__subclasses__()  # an app may have settings in the dict itself, too
        sections = {name for each in others for name in ([each.key] if each.key else each.defaults())}
        absent = {} if self.key else {name: app for name in self._given if (app := _absent_app(name))}
        for name, app in absent.items():
            yield Error(
                f"{where}[{name!r}] has no effect: {app!r}, which reads it, is not in INSTALLED_APPS.",
                hint=f"Add {app!r} to INSTALLED_APPS, or remove the setting.",
                id="chatmemory.E012",
            )
        names = {*self.defaults(), *sections} - set(absent)
        for name in sorted(set(self._given) - names - set(absent), key=str):
            close = get_close_matches(str(name), names, n=1)
            yield Warning(
                f"{where} has no setting {name!r}, so it has no effect.",
                hint=(f"Did you mean {close[0]!r}?" if close else f"The settings are {', '.join(sorted(names))}.")
                + ("" if self.key else " If it is an app's, add that to INSTALLED_APPS."),
                id=self.ids[1],
            )

    def broken(self) -> Iterator[CheckMessage]:
        """Check the values by their rules."""
        where = f"CHATMEMORY[{self.key!r}]" if self.key else "CHATMEMORY"
        for name, annotation in get_type_hints(type(self), include_extras=True).items():
            for rule in (each for each in getattr(annotation, "__metadata__", ()) if isinstance(each, Rule)):
                if not rule.is_met(value := getattr(self, name)):
                    own = [each for each in annotation.__metadata__ if isinstance(each, str)]
                    yield Error(
                        f"{where}[{name!r}] must be {rule.must_be}, not {value!r}.",
                        hint=rule.hint or f"Remove it to use the default of {getattr(type(self), name)!r}.",
                        id=own[0] if own else self.ids[-1],
                    )


_UNREAD: tuple[None, Any] = (None, None)
_read: dict[type[Section], tuple[Mapping[str, Any] | None, Any]] = {}
"""What each section was read from, and what it was then."""

_MEMORY = {"CLASS": "chatmemory_django.memory.MessageWindowChatMemory", "OPTIONS": {"max_messages": 20}}


class General(Section):
    """What is in ``CHATMEMORY`` and in none of its sections."""

    ids = ("chatmemory.E001", "chatmemory.W002")
    hint = 'Write CHATMEMORY = {"KEEP_HISTORY": True}, for example, or leave it out.'

    MEMORY: Mapping[str, Any] | Callable[[object], Mapping[str, Any]] | str = _MEMORY
    """A function from a memory id to such a dict, too, or its path."""
    KEEP_HISTORY: Annotated[Switch, "chatmemory.E006"] = True
    """Whether messages stay in the database after they have left the memory."""
    MAX_MESSAGE_BYTES: Annotated[Count, "chatmemory.E005"] = 4 * 1024 * 1024
    """
    The largest message, in bytes of UTF-8. Stored twice, as text and as JSON, and escaped in the statement, one of the
    default fits MariaDB's packet of 16 MiB.
    """
    ALLOW_NETWORK: Annotated[Switch, "chatmemory.E007"] = True
    """Whether tiktoken's encodings may be downloaded."""
    REMOTE_MEDIA: Annotated[Switch, "chatmemory.E009"] = False
    """Whether the admin displays images from other servers instead of linking to them."""
    REMOTE_FILES: Annotated[Switch, "chatmemory.E010"] = True
    """Whether users may send the addresses of files on other servers, which models then load."""
    STORAGE_QUOTA: Annotated[CountOrNone, "chatmemory.E014"] = None
    """How many characters of texts and bytes of files the conversations of one user may have; None: no limit."""
    ACCESS_POLICY: Annotated[str, path_of("chatmemory_django.access.AccessPolicy"), "chatmemory.E024"] = (
        "chatmemory_django.access.AccessPolicy"
    )
    MCP_THROTTLE_RATE: Annotated[Rate, "chatmemory.E025"] = "120/min"
    LOG_READS: Annotated[Switch, "chatmemory.E013"] = False
    """Whether reads of others' conversations are sent to ``signals.conversations_read``, and to the admin's log."""
    RETENTION: object = None
    """A dict, see ``Retention``; None: nothing is deleted."""


class Rest(Section):
    """``REST``: the settings of the REST API."""

    key = "REST"
    ids = ("chatmemory.E021", "chatmemory.W021", "chatmemory.E022")
    hint = 'Write "REST": {"PAGE_SIZE": 20}, for example, or leave it out.'

    FORMAT: Annotated[str, one_of(*FORMATS), "chatmemory.E026"] = "langchain4j"
    MAX_BODY_BYTES: Count = 5 * 1024 * 1024
    MAX_IMPORT_BYTES: Count = 32 * 1024 * 1024
    MAX_IMPORT_MESSAGES: Count = 100_000
    MAX_MESSAGES: Count = 100
    MAX_METADATA_BYTES: Count = 16 * 1024
    MAX_TEXT_LENGTH: Count = 1_000_000
    MAX_JSON_DEPTH: Count = 32
    PAGE_SIZE: Count = 50
    MAX_PAGE_SIZE: Count = 200
    MAX_PAGE_CHARACTERS: Count = 4 * 1024 * 1024
    NUM_PROXIES: Whole = 0
    THROTTLE_RATES: Annotated[
        Mapping[str, str | None],
        Rule(f"a dict of rates for {', '.join(RATES)}", _are_rates, f"{_RATE_HINT} The default is {RATES!r}."),
        "chatmemory.E023",
    ] = RATES


class Threads(Section):
    """What the admin, and threads that use the database, read of ``CHAT``; ``chat.conf`` has the rest."""

    key = "CHAT"

    ASSISTANTS: Mapping[str, Any] = {}
    THREAD_CONTEXT: object = None
    THREADS: Count = 8


class Retention(Section):
    """``RETENTION``: after which periods old messages, idle and temporary conversations are deleted; None: never."""

    key = "RETENTION"
    ids = ("chatmemory.E063", "chatmemory.W062", "chatmemory.E064")
    hint = "For example {'IDLE': 365, 'TEMPORARY': timedelta(hours=12)}, or None; a number counts days."

    HISTORY_OLDER_THAN: Period = None
    IDLE: Period = None
    TEMPORARY: Period = timedelta(days=1)


general, rest, threads = General.current, Rest.current, Threads.current


def retention() -> Mapping[str, timedelta | None] | None:
    """Return the periods of ``RETENTION``, with a number as days; None if it is not set, which is the default."""
    if general().RETENTION is None:
        return None
    periods = Retention.current()
    given = {name: getattr(periods, name) for name in Retention.defaults()}
    return {name: timedelta(days=each) if isinstance(each, int) else each for name, each in given.items()}


def _absent_app(name: object) -> str | None:
    """Return the path of the app in ``contrib`` that reads the setting *name*, if it is not installed."""
    path = f"chatmemory_django.contrib.{'files' if str(name).startswith('MEDIA_') else str(name).lower()}"
    is_app = str(name).isidentifier() and find_spec(path) is not None and find_spec(f"{path}.conf") is not None
    return path if is_app and not apps.is_installed(path) else None


def is_path(value: object) -> bool:
    """Return whether *value*, which may be any text, is written like the path of something to import."""
    return isinstance(value, str) and "." in value and all(map(str.isidentifier, value.split(".")))


def imported(value: object) -> object:
    """Return what *value* names if it is a path, otherwise *value* itself."""
    try:
        return import_string(value) if isinstance(value, str) else value
    except ImportError:
        return value
