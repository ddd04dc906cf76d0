"""JSON files with one or many conversations: a file, a folder, or an archive."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from io import TextIOWrapper
from operator import attrgetter
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias
from zipfile import BadZipFile, ZipFile, is_zipfile

from chatmemory_django.importing.moved import Moved, ReadMessages, Source, Step, UnreadableError, from_json

READ_CHARACTERS = 1024 * 1024
"""The number of characters of an array that are read at a time."""

MAX_CHARACTERS = 256 * READ_CHARACTERS
"""The maximum length of one conversation in an array."""

ReadConversation: TypeAlias = Callable[[Any], tuple[str, Moved]]
"""Returns the id and the content of a conversation, which is an item of an array."""

_SPACE = re.compile(r"[\s,]*")
_decode = json.JSONDecoder().raw_decode


class _File(NamedTuple):
    name: str
    size: int
    open: Callable[[], IO[bytes]]


@contextmanager
def open_conversations(source: str, read: ReadMessages) -> Iterator[Source]:
    """
    Open *source*, a JSON file, or a folder or an archive of such files. Each file is read as a whole.

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
            raise UnreadableError(f"There is no file in {source!r} whose name matches {name.pattern!r}.")
        yield found


def _file(path: Path) -> _File:
    return _File(path.name, path.stat().st_size, lambda: path.open("rb"))


def _conversations(files: Sequence[_File], read: ReadMessages) -> Iterator[Step]:
    for file in files:
        size = file.size
        try:
            with file.open() as stream:
                found = _by_id(from_json(stream.read(), file.name), file.name)
        except (BadZipFile, ValueError, zlib.error) as exc:
            yield Step(file.name, ValueError(str(exc)), size)
            continue
        for memory_id, messages in found.items():
            yield Step(memory_id, _moved(messages, read), size)
            size = 0


def _moved(messages: object, read: ReadMessages) -> Moved | ValueError:
    if not isinstance(messages, list):
        return ValueError(f"Its messages must be a list, not {type(messages).__name__}.")
    try:
        return Moved(read(messages))
    except (RecursionError, TypeError, ValueError) as exc:
        return ValueError(str(exc))


def _by_id(document: Any, name: str) -> Mapping[str, Any]:
    if isinstance(document, list):
        return {Path(name).stem: document}
    if not isinstance(document, dict):
        raise UnreadableError(f"{name} must be a list of messages, or an object of such lists.")
    store = document.get("store")
    return store if isinstance(store, dict) else document


def _items(files: Sequence[_File], read: ReadConversation) -> Iterator[Step]:
    for file in files:
        done = 0
        with TextIOWrapper(file.open(), "utf-8-sig") as stream:
            for index, item in enumerate(_array(stream, file.name)):
                size, done = stream.buffer.tell() - done, stream.buffer.tell()
                memory_id = f"{file.name}[{index}]"
                found: Moved | ValueError
                try:
                    memory_id, found = read(item)
                except (AttributeError, KeyError) as exc:
                    found = ValueError(f"It has an invalid structure: {exc!r}.")
                except (TypeError, ValueError) as exc:
                    found = ValueError(str(exc))
                except RecursionError:
                    found = ValueError("It is nested too deeply.")
                yield Step(memory_id, found, size)


def _array(stream: IO[str], name: str) -> Iterator[Any]:
    """Yield the items of the array in *stream*, each as soon as it is complete."""
    text = _more(stream, name).lstrip()
    if not text.startswith("["):
        raise UnreadableError(f"{name} must be a list of conversations.")
    position, count = 1, 0
    while True:
        position = _SPACE.match(text, position).end()  # type: ignore[union-attr]  # of nothing, too
        if text.startswith("]", position):
            return
        try:
            item, position = _decode(text, position)
        except (RecursionError, ValueError):
            more = _more(stream, name, len(text) - position)
            if not more or len(text) - position > MAX_CHARACTERS:
                raise UnreadableError(f"{name} is truncated or is not JSON after conversation {count}.") from None
            text, position = text[position:] + more, 0
        else:
            yield item
            count += 1


def _more(stream: IO[str], name: str, at_least: int = 0) -> str:
    try:
        return stream.read(max(READ_CHARACTERS, at_least))
    except UnicodeDecodeError:
        raise UnreadableError(f"{name} is not UTF-8.") from None
    except (BadZipFile, zlib.error):
        raise UnreadableError(f"{name} is damaged.") from None
