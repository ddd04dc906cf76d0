"""HTTP: chunked bodies, strong and weak ETags, paths without the slash, and real servers."""

import http.client
import io
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest
from django.test import AsyncRequestFactory
from rest_framework.test import APIClient, force_authenticate

from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation
from chatmemory_django.rest.conversations import ConversationViewSet
from tests.faces.rest.conftest import HI, MEMORY, MESSAGES, ROOT, adding
from tests.ports import free_port

BASE = Path(__file__).parents[3]
BODY = json.dumps({"title": "in chunks"}).encode()


def chunked(client: APIClient, body: bytes, *, is_terminated: bool, verb: str = "POST", where: str = ROOT):
    """Return a request as a WSGI server passes on a chunked body: without a length."""
    environ = {
        "CONTENT_LENGTH": "",
        "HTTP_TRANSFER_ENCODING": "chunked",
        "wsgi.input": io.BytesIO(body),
        "wsgi.input_terminated": is_terminated,
    }
    return client.generic(verb, where, content_type="application/json", **environ)


@pytest.mark.django_db
class TestChunkedBodies:
    def test_are_read_to_the_end(self, api):
        response = chunked(api, BODY, is_terminated=True)

        assert response.status_code == 201
        assert Conversation.objects.get().title == "in chunks"

    def test_need_a_server_that_marks_their_end(self, api):
        response = chunked(api, BODY, is_terminated=False)

        assert (response.status_code, response.json()["type"]) == (411, "urn:chatmemory:length_required")
        assert not Conversation.objects.exists()

    def test_have_the_usual_size_limit(self, api, settings):
        settings.CHATMEMORY["REST"]["MAX_BODY_BYTES"] = len(BODY) - 1

        assert chunked(api, BODY, is_terminated=True).status_code == 413

    def test_that_are_empty_are_not_json(self, api):
        assert chunked(api, b"", is_terminated=True).status_code == 400

    def test_of_lines_are_imported(self, client_of, begin):
        begin("c", UserMessage("hi"))
        importer = client_of("owner who imports")
        lines = b"".join(importer.get(f"{ROOT}c/export/").streaming_content)

        environ = {"CONTENT_LENGTH": "", "HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input": io.BytesIO(lines),
                   "wsgi.input_terminated": True}  # fmt: skip
        response = importer.generic("POST", "/api/import/?rename=1", content_type="application/jsonl", **environ)

        assert response.status_code == 201

    @pytest.mark.django_db(transaction=True)
    def test_are_read_to_the_end_under_asgi(self, person):
        request = AsyncRequestFactory().post(ROOT, BODY, content_type="application/json")
        del request.META["CONTENT_LENGTH"]
        request.META["HTTP_TRANSFER_ENCODING"] = "chunked"
        force_authenticate(request, person("owner"))

        response = ConversationViewSet.as_view({"post": "create"})(request)

        assert response.status_code == 201
        assert Conversation.objects.get().title == "in chunks"


@pytest.mark.django_db
class TestPaths:
    @pytest.mark.parametrize("slash", ["", "/"])
    def test_without_the_slash_accept_a_post(self, api, begin, slash):
        begin("c")

        response = api.post(f"{ROOT}c/messages{slash}", adding(HI), format="json")

        assert response.status_code == 201
        assert api.post(f"{ROOT.rstrip('/')}{slash}").status_code == 201

    def test_in_location_lead_to_the_created_object(self, api):
        for where in (ROOT, ROOT.rstrip("/")):
            response = api.post(where)

            assert api.get(response["Location"]).json() == response.json()

    def test_of_next_pages_have_no_slash_either(self, api, begin):
        begin("c", UserMessage("1"), UserMessage("2"))

        page = api.get(MESSAGES.rstrip("/"), {"page_size": 1}).json()

        assert api.get(page["next"]).json()["results"][0]["sequence"] == 1


READ = (f"{ROOT}c/", MESSAGES, f"{MESSAGES}1/", MEMORY)


@pytest.mark.django_db
class TestNotModified:
    @pytest.fixture(autouse=True)
    def conversation(self, begin) -> None:
        begin("c", UserMessage("hi"))

    @pytest.mark.parametrize("where", READ)
    @pytest.mark.parametrize("form", ["{}", "W/{}", '"x", {}', '"x", W/{} , "y"', "*"])
    def test_is_the_response_to_a_current_etag(self, api, where, form):
        etag = api.get(where)["ETag"]
        headers = {"If-None-Match": form.format(etag)}

        for response in (api.get(where, headers=headers), api.head(where, headers=headers)):
            assert (response.status_code, response.content, response["ETag"]) == (304, b"", etag)
            assert response["Cache-Control"] == "no-store"

    @pytest.mark.parametrize("where", READ)
    @pytest.mark.parametrize("etag", ['"x"', "x", '"1-1', "", "W/", '"*"'])
    def test_is_not_the_response_to_another_etag(self, api, where, etag):
        assert api.get(where, headers={"If-None-Match": etag}).status_code == 200

    @pytest.mark.parametrize(
        "change",
        [
            lambda api: api.post(MESSAGES, adding(HI), format="json"),
            lambda api: api.patch(f"{ROOT}c/", {"title": "t"}, format="json"),
            lambda api: api.patch(f"{MESSAGES}1/", {"metadata": {"feedback": 1}}, format="json"),
            lambda api: api.delete(MEMORY),
        ],
        ids=["post", "patch", "feedback", "clear"],
    )
    def test_is_not_the_response_after_a_change(self, api, change):
        etag = api.get(MESSAGES)["ETag"]

        assert change(api).status_code < 300

        for where in READ:
            assert api.get(where, headers={"If-None-Match": etag}).status_code == 200

    def test_is_not_the_response_without_permission(self, api, client_of):
        headers = {"If-None-Match": api.get(MESSAGES)["ETag"]}

        for name, status in (("other", 404), ("anonymous", 401)):
            assert client_of(name).get(MESSAGES, headers=headers).status_code == status

    def test_is_not_the_response_to_an_invalid_filter(self, api):
        assert api.get(f"{MESSAGES}?after=true", headers={"If-None-Match": "*"}).status_code == 400

    def test_is_not_the_response_for_a_later_conversation_with_the_same_id(self, api, begin):
        """A conversation erased and created again is another one, even with the same version."""
        etag = api.get(f"{ROOT}c/")["ETag"]
        api.delete(f"{ROOT}c/")
        begin("between")
        begin("c", UserMessage("hi"))

        assert api.get(f"{ROOT}c/", headers={"If-None-Match": etag}).status_code == 200

    def test_avoids_reading_the_messages(self, api, django_assert_num_queries):
        headers = {"If-None-Match": api.get(MESSAGES)["ETag"]}

        with django_assert_num_queries(1):
            api.get(MESSAGES, headers=headers)

    def test_is_not_the_response_to_unsafe_requests(self, api):
        response = api.post(MESSAGES, adding(HI), format="json", headers={"If-None-Match": "*"})

        assert response.status_code == 201


@pytest.mark.django_db
class TestIfMatch:
    def test_accepts_the_weak_etag_of_a_compressed_response(self, begin, person, settings):
        settings.MIDDLEWARE = ["django.middleware.gzip.GZipMiddleware", *settings.MIDDLEWARE]
        begin("c", *[UserMessage("hi" * 100)] * 3)
        client = APIClient(headers={"Accept-Encoding": "gzip"})
        client.force_authenticate(person("owner"))
        read = client.get(MESSAGES)
        headers = {"If-Match": read["ETag"]}

        patched = [client.patch(f"{ROOT}c/", {"title": each}, format="json", headers=headers) for each in "ab"]

        assert read["Content-Encoding"] == "gzip"
        assert read["ETag"].startswith('W/"')
        assert [each.status_code for each in patched] == [200, 412]
        assert client.get(MESSAGES, headers={"If-None-Match": client.get(MESSAGES)["ETag"]}).status_code == 304

    @pytest.mark.parametrize("form", ["{}", "W/{}", '"x", {}', "*"])
    def test_accepts_every_notation(self, api, begin, form):
        begin("c")
        headers = {"If-Match": form.format(api.get(f"{ROOT}c/")["ETag"])}

        assert api.patch(f"{ROOT}c/", {"title": "t"}, format="json", headers=headers).status_code == 200

    @pytest.mark.parametrize("etag", ['"x"', "x", "", "W/", '"*"'])
    def test_refuses_other_and_invalid_etags(self, api, begin, etag):
        begin("c")

        for response in (
            api.patch(f"{ROOT}c/", {"title": "t"}, format="json", headers={"If-Match": etag}),
            api.post(MESSAGES, adding(HI), format="json", headers={"If-Match": etag}),
            api.delete(MEMORY, headers={"If-Match": etag}),
            api.delete(f"{ROOT}c/", headers={"If-Match": etag}),
        ):
            assert response.status_code == 412
        assert Conversation.objects.get().title == ""


SERVERS = {
    "gunicorn": ["gunicorn", "-b", "127.0.0.1:{port}", "example_project.wsgi"],
    "uvicorn": [
        "uvicorn",
        "--port",
        "{port}",
        "--log-level",
        "warning",
        "--lifespan",
        "off",
        "example_project.asgi:application",
    ],
    "runserver": ["django", "runserver", "--noreload", "127.0.0.1:{port}"],
}


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> dict[str, str]:
    """Return the environment of a site with a database in a file, and the token of its one user."""
    file = tmp_path_factory.mktemp("live") / "db.sqlite3"
    environment = {
        **os.environ,
        "DATABASE_URL": f"sqlite:///{file}",
        "DJANGO_SETTINGS_MODULE": "tests.acceptance.rest.live_settings",
    }
    make = (
        "from django.core.management import call_command; call_command('migrate', verbosity=0);"
        "from django.contrib.auth.models import User; from rest_framework.authtoken.models import Token;"
        "print(Token.objects.create(user=User.objects.create_user('live')).key)"
    )
    made = subprocess.run(
        [sys.executable, "-c", f"import django; django.setup(); {make}"],
        env=environment, cwd=BASE, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return {**environment, "TOKEN": made.stdout.strip()}


@pytest.fixture(scope="module", params=SERVERS)
def server(request, site) -> Iterator[tuple[str, int, str]]:
    """Run a server in a process of its own; yield its name, port and token."""
    module, *arguments = SERVERS[request.param]
    if find_spec(module) is None:
        pytest.skip(f"{module} is not installed: it comes with the dependency group dev")
    port = free_port()
    command = [sys.executable, "-m", module, *(each.format(port=port) for each in arguments)]
    process = subprocess.Popen(command, env=site, cwd=BASE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, f"{module} has ended"
            time.sleep(0.1)
        yield request.param, port, site["TOKEN"]
    finally:
        process.terminate()
        process.wait(60)


def ask(server, verb: str, where: str, body: object = None, **headers: str) -> http.client.HTTPResponse:
    """Send a request to the server; a body that is an iterator is sent in chunks."""
    _, port, token = server
    sent = {"Authorization": f"Token {token}", "Content-Type": "application/json"} | headers
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request(verb, where, body, sent, encode_chunked=not isinstance(body, (bytes, type(None))))
        response = connection.getresponse()
        response.body = response.read()  # type: ignore[attr-defined]
    return response


class TestServers:
    def test_accept_a_chunked_body_or_require_its_length(self, server):
        response = ask(server, "POST", ROOT, iter([BODY[:5], BODY[5:]]), **{"Transfer-Encoding": "chunked"})

        if server[0] == "runserver":
            assert response.status == 411
            assert json.loads(response.body)["type"] == "urn:chatmemory:length_required"
        else:
            assert response.status == 201
            assert json.loads(response.body)["title"] == "in chunks"

    def test_accept_a_post_without_the_slash(self, server):
        response = ask(server, "POST", ROOT.rstrip("/"), BODY)

        assert response.status == 201

    def test_send_and_honour_etags(self, server):
        where = ask(server, "POST", ROOT, b"{}").headers["Location"].partition("127.0.0.1")[2].partition("/")[2]
        etag = ask(server, "GET", f"/{where}").headers["ETag"]

        unchanged = ask(server, "GET", f"/{where}", **{"If-None-Match": etag})
        head = ask(server, "HEAD", f"/{where}")
        statuses = [ask(server, "PATCH", f"/{where}", BODY, **{"If-Match": etag}).status for _ in range(2)]

        assert (unchanged.status, unchanged.body) == (304, b"")
        assert (head.status, head.body, head.headers["ETag"]) == (200, b"", etag)
        assert statuses == [200, 412]

    @pytest.mark.slow
    def test_refuse_a_chunked_body_that_is_too_large(self, server):
        if server[0] == "runserver":
            pytest.skip("It takes none in chunks")
        pieces = (b" " * 65_536 for _ in range(100))

        try:
            status = ask(server, "POST", ROOT, pieces, **{"Transfer-Encoding": "chunked"}).status
        except (BrokenPipeError, ConnectionResetError):
            status = 413  # the server may close the connection

        assert status == 413
