"""JSON files with one or many conversations: a file, a folder, or an archive."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from io import TextIOWrapper
from operator import attrgetter
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias
from zipfile import BadZipFile, ZipFile, is_zipfile

from chatmemory_django import conf
from chatmemory_django.contrib.importing.moved import ReadMessages, ReadResult, Source, UnreadableSourceError
from chatmemory_django.operations import ImportedConversation

READ_CHARACTERS = 1024 * 1024
"""The number of characters that are read at a time."""

MAX_CHARACTERS = 256 * READ_CHARACTERS
"""The maximum length of one conversation in an array, without the spaces between its tokens."""

LONGEST_TOKEN = 16
"""More characters than any token has, strings and numbers aside: what is wrong before that is not merely cut."""

MAX_ESCAPED = 8
"""How many times its stored size a message may take in JSON, with its characters escaped and the framework's own."""

ReadConversation: TypeAlias = Callable[[Any], ImportedConversation]
"""Returns a conversation, which is an item of an array."""

# Group 1 is a string; group 2 its end, if it has one, otherwise group 3 is a backslash at the end of the text, if any.
_STRING_OR_SPACE = re.compile(r'("[^"\\]*+(?:\\.[^"\\]*+)*+(?:(")|(\\?)\Z))|[ \t\r\n]+', re.DOTALL)
_decode = json.JSONDecoder().raw_decode


class _File(NamedTuple):
    name: str
    size: int
    open: Callable[[], IO[bytes]]


@contextmanager
def open_conversations(source: str, read: ReadMessages) -> Iterator[Source]:
    """
    Open *source*, a JSON file, or a folder or an archive of such files. One conversation is in memory at a time.

    An array has the messages of one conversation, whose id is the name of the file. An object has such arrays by id;
    they may also be in its key "store".
    """
    with _opened(source, re.compile(r"[^.].*\.json")) as files:
        yield Source("bytes", sum(file.size for file in files), _conversations(files, read))


@contextmanager
def open_array(source: str, name: re.Pattern[str], read: ReadConversation) -> Iterator[Source]:
    """
    Open *source*, a JSON file with an array, or a folder or an archive with such files whose names match *name*.

    Only one item of the array is in memory at a time.
    """
    with _opened(source, name) as files:
        yield Source("bytes", sum(file.size for file in files), _items(files, read))


@contextmanager
def _opened(source: str, name: re.Pattern[str]) -> Iterator[list[_File]]:
    path = Path(source)
    with ExitStack() as stack:
        if path.is_dir():
            files = [_file(each) for each in path.iterdir() if each.is_file()]
        elif is_zipfile(path):
            archive = stack.enter_context(ZipFile(path))
            parts = [each for each in archive.infolist() if not each.is_dir()]
            files = [_File(Path(each.filename).name, each.file_size, partial(archive.open, each)) for each in parts]
        else:
            yield [_file(path)]
            return
        found = sorted((each for each in files if name.fullmatch(each.name)), key=attrgetter("name"))
        if not found:
            raise UnreadableSourceError(f"There is no file in {source!r} whose name matches {name.pattern!r}.")
        yield found


def _file(path: Path) -> _File:
    return _File(path.name, path.stat().st_size, lambda: path.open("rb"))


def _conversations(files: Sequence[_File], read: ReadMessages) -> Iterator[ReadResult]:
    for file in files:
        done = 0
        try:
            with _text(file, MAX_ESCAPED * conf.general().MAX_MESSAGE_BYTES) as text:
                for memory_id, conversation in _by_id(text, file.name, read):
                    size, done = text.position() - done, text.position()
                    yield ReadResult(memory_id, conversation, size)
        except UnreadableSourceError as exc:
            yield ReadResult(file.name, ValueError(str(exc)), file.size - done)


def _by_id(text: _Text, name: str, read: ReadMessages) -> Iterator[tuple[str, ImportedConversation | ValueError]]:
    """Yield the conversations of a document: of a list, or of an object of lists, or of its key "store"."""
    if text.skip("["):
        found = _moved(Path(name).stem, text, read)
        text.end()
        yield Path(name).stem, found
        return
    if not text.skip("{"):
        text.value()  # an error if it is no JSON at all
        raise UnreadableSourceError(f"{name} must be a list of messages, or an object of such lists.")
    others: list[tuple[str, ValueError]] = []
    has_store = False
    for key in text.names():
        if text.skip("["):
            yield key, _moved(key, text, read)
        elif key == "store" and text.skip("{"):
            has_store = True
            for memory_id in text.names():
                yield memory_id, _moved(memory_id, text, read) if text.skip("[") else _no_list(text.value())
        else:
            others.append((key, _no_list(text.value())))
    text.end()
    if not has_store:
        yield from others


def _no_list(value: object) -> ValueError:
    return ValueError(f"Its messages must be a list, not {type(value).__name__}.")


def _moved(memory_id: str, text: _Text, read: ReadMessages) -> ImportedConversation | ValueError:
    """Return the conversation of the list that *text* is in, each message converted as soon as it is read."""
    items = text.items()
    try:
        return ImportedConversation(memory_id, read(items))
    except NotJsonError:
        raise
    except (RecursionError, TypeError, ValueError) as exc:
        for _ in items:  # the next conversation comes after the rest of them
            pass
        return ValueError(str(exc))


def _items(files: Sequence[_File], read: ReadConversation) -> Iterator[ReadResult]:
    for file in files:
        done = 0
        with _text(file, MAX_CHARACTERS) as text:
            for index, item in enumerate(_array(text, file.name)):
                size, done = text.position() - done, text.position()
                memory_id = f"{file.name}[{index}]"
                found: ImportedConversation | ValueError
                try:
                    found = read(item)
                    memory_id = str(found.memory_id)
                except (AttributeError, KeyError) as exc:
                    found = ValueError(f"It has an invalid structure: {exc!r}.")
                except (TypeError, ValueError) as exc:
                    found = ValueError(str(exc))
                except RecursionError:
                    found = ValueError("It is nested too deeply.")
                yield ReadResult(memory_id, found, size)


def _array(text: _Text, name: str) -> Iterator[Any]:
    """Yield the items of the array in *text*, each as soon as it is complete."""
    if not text.skip("["):
        raise UnreadableSourceError(f"{name} must be a list of conversations.")
    count = 0
    try:
        for item in text.items():
            yield item
            count += 1
    except NotJsonError as exc:
        if exc.is_damaged:
            raise
        raise UnreadableSourceError(f"{name} is truncated or is not JSON after conversation {count}.") from None


DAMAGES = (BadZipFile, EOFError, zlib.error)
"""The errors of what is in a damaged archive."""


class NotJsonError(UnreadableSourceError):
    """The error for a file that is not JSON, or not even readable."""

    def __init__(self, message: str, *, is_damaged: bool = False) -> None:
        super().__init__(message)
        self.is_damaged = is_damaged


@contextmanager
def _text(file: _File, max_characters: int) -> Iterator[_Text]:
    try:
        raw = file.open()
    except (BadZipFile, NotImplementedError, RuntimeError) as exc:  # encrypted, or compressed in an unknown way
        raise NotJsonError(f"{file.name} cannot be read: {exc}.", is_damaged=True) from None
    with TextIOWrapper(raw, "utf-8-sig") as stream:
        yield _Text(stream, file.name, max_characters)


class _Text:
    """
    The JSON in a file, read in parts: only the value that is read next is in memory, of up to *max_characters*.

    The spaces between tokens are left out at once: an archive of half a megabyte may have a gigabyte of them.
    """

    def __init__(self, stream: TextIOWrapper, name: str, max_characters: int) -> None:
        self._stream = stream
        self._name = name
        self._max = max_characters
        self._text = ""
        self._at = 0
        self._is_in_string = False
        self._is_escaped = False

    def position(self) -> int:
        """Return how many bytes of the file have been read."""
        return self._stream.buffer.tell()  # type: ignore[attr-defined,no-any-return]  # of files and of archives

    def skip(self, character: str) -> bool:
        """Return whether *character* comes next; then it is read."""
        if self._at == len(self._text):
            self._more()
        is_next = self._text.startswith(character, self._at)
        self._at += is_next
        return is_next

    def value(self) -> Any:
        """Read a value."""
        while True:
            try:
                value, end = _decode(self._text, self._at)
            except RecursionError:
                raise NotJsonError(f"{self._name} is nested too deeply.") from None
            except json.JSONDecodeError as exc:
                is_cut = exc.msg.startswith("Unterminated") or exc.pos > len(self._text) - LONGEST_TOKEN
                end = -1
            except ValueError:  # a number with too many digits
                is_cut, end = False, -1
            # What ends with the text may be the beginning of a longer number.
            if end >= 0 and (end < len(self._text) or isinstance(value, (dict, list, str))):
                self._at = end
                return value
            if (end < 0 and not is_cut) or len(self._text) - self._at > self._max or not self._more():
                if end < 0:
                    raise NotJsonError(f"{self._name} is not JSON.")
                self._at = end
                return value

    def items(self) -> Iterator[Any]:
        """Yield the items of an array, after its bracket."""
        if self.skip("]"):
            return
        while True:
            yield self.value()
            if self._ends("]"):
                return

    def names(self) -> Iterator[str]:
        """Yield the keys of an object, after its brace; what is between two of them is read by the caller."""
        if self.skip("}"):
            return
        while True:
            key = self.value()
            if not isinstance(key, str) or not self.skip(":"):
                raise NotJsonError(f"{self._name} is not JSON.")
            yield key
            if self._ends("}"):
                return

    def end(self) -> None:
        """Check that nothing follows."""
        if self._at < len(self._text) or self._more():
            raise NotJsonError(f"{self._name} is not JSON.")

    def _ends(self, bracket: str) -> bool:
        if self.skip(bracket):
            return True
        if not self.skip(","):
            raise NotJsonError(f"{self._name} is not JSON.")
        return False

    def _more(self) -> bool:
        """Read more of the file, as much as there is of the value that is read; return whether there is more."""
        rest = self._text[self._at :]
        parts = [rest]
        size = 0
        while size < max(READ_CHARACTERS, len(rest)) and (read := self._read()):
            parts.append(self._without_spaces(read))
            size += len(parts[-1])
        self._text, self._at = "".join(parts), 0
        return size > 0

    def _read(self) -> str:
        try:
            return self._stream.read(READ_CHARACTERS)
        except UnicodeDecodeError:
            raise NotJsonError(f"{self._name} is not UTF-8.", is_damaged=True) from None
        except DAMAGES:
            raise NotJsonError(f"{self._name} is damaged.", is_damaged=True) from None

    def _without_spaces(self, text: str) -> str:
        begun = "\\" * self._is_escaped
        text = f'"{begun}{text}' if self._is_in_string else text
        was_in_string, self._is_in_string, self._is_escaped = self._is_in_string, False, False
        kept: list[str] = []
        last = 0
        for match in _STRING_OR_SPACE.finditer(text):
            if match[1] is None:
                kept.append(text[last : match.start()])
                last = match.end()
            elif match[2] is None:
                self._is_in_string = True
                self._is_escaped = match[3] != ""
        kept.append(text[last:])
        return "".join(kept)[was_in_string * (1 + len(begun)) :]
