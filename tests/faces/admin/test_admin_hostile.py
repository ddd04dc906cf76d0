"""Hostile messages, titles, ids and URLs are shown in the admin without effect."""

import base64
import re
from functools import partial
from html.parser import HTMLParser
from urllib.parse import urlencode

import django
import pytest
from django.contrib.admin import BooleanFieldListFilter, site
from django.contrib.auth.models import User

from chatmemory_django.admin import ConversationAdmin
from chatmemory_django.admin.media import is_link, media_of
from chatmemory_django.admin.wording import excerpt, pretty_json
from chatmemory_django.core.media import file_type
from chatmemory_django.core.shown import visible
from chatmemory_django.messages import (
    AiMessage,
    Audio,
    AudioContent,
    CustomMessage,
    Image,
    ImageContent,
    PdfFile,
    PdfFileContent,
    SystemMessage,
    TextContent,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
    Video,
    VideoContent,
)
from chatmemory_django.models import Conversation, Message
from tests.faces.admin.admin_site import EVERYTHING, conversation, page, post_action, staff
from tests.quick import mostly_slow

SCRIPT = "<script>alert(1)</script>"
BREAK_OUT = "\"'><img src=x onerror=alert(1)>"
OVERRIDE = "\u202egnp.exe\u2066"
PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII=")
PNG_BASE64 = base64.b64encode(PNG).decode()
HTML_BASE64 = base64.b64encode(SCRIPT.encode()).decode()
SVG_BASE64 = base64.b64encode(b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>").decode()


class Elements(HTMLParser):
    """Parse the elements and attributes of a page, as a browser does."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def assert_harmless(html: str) -> None:
    """Assert that *html* contains no script, style or URL that a strict policy would block."""
    for tag, attributes in Elements(html).found:
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        assert "style" not in attributes, (tag, attributes)
        assert tag not in {"style", "iframe", "object", "embed", "base"}
        if tag == "script":
            assert attributes["src"].startswith("/")
        if tag in {"img", "audio", "video", "source", "link"}:
            assert (attributes.get("src") or attributes.get("href")).startswith("/"), (tag, attributes)
        for name in ("href", "src", "action"):
            address = attributes.get(name) or ""
            assert re.match(r"(https?://|/|\?|#|$)", address), (tag, attributes)
    assert not re.search("[\u202a-\u202e\u2066-\u2069]", html)


@pytest.fixture
def reader(client, db):
    client.force_login(staff(*EVERYTHING))
    return client


def html_of(client, address: str) -> str:
    response = client.get(address)
    assert response.status_code == 200
    return response.content.decode()


class TestPages:
    @pytest.mark.parametrize("evil", [SCRIPT, BREAK_OUT, OVERRIDE, "javascript:alert(1)", "{{ 7|add:7 }}{% now %}"])
    def test_hostile_text_is_harmless_wherever_it_appears(self, reader, evil):
        call = ToolExecutionRequest(id=evil, name=evil, arguments=evil)
        talk = conversation(
            SystemMessage(evil),
            UserMessage([TextContent(evil)], name=evil, attributes={evil: evil}),
            AiMessage(evil, evil, [call], {evil: evil}),
            ToolExecutionResultMessage(evil, evil, evil),
            ToolExecutionResultMessage("orphan", evil, evil),
            CustomMessage({evil: evil}),
            memory_id=evil,
            title=evil,
            owner=User.objects.create_user(evil),
        )
        Message.objects.update(metadata={evil: evil})
        Conversation.objects.update(metadata={evil: evil})

        addresses = [
            page("changelist"),
            page("change", talk.pk),
            *(page("message", talk.pk, sequence) for sequence in range(1, 7)),
            *(page(name, talk.pk) for name in ("clear", "delete", "export", "recount", "history")),
        ]
        for address in addresses:
            html = html_of(reader, address)
            assert_harmless(html)
            assert "<script>alert" not in html
            assert "<img src=x" not in html
        assert_harmless(post_action(reader, "clear_memory", [talk]).content.decode())
        response = reader.post(page("delete", talk.pk), {"confirmed": "delete"}, follow=True)
        assert_harmless(response.content.decode())
        assert_harmless(html_of(reader, "/admin/"))

    @pytest.mark.parametrize("parameter", ["q", "owner", "active", "memory", "evictions", "problem", "flag"])
    def test_hostile_query_parameters_of_the_list_are_harmless(self, reader, parameter):
        response = reader.get(page("changelist"), {parameter: BREAK_OUT})

        assert response.status_code == 200
        assert_harmless(response.content.decode())

    def test_a_line_of_a_megabyte_is_truncated_and_available_in_full(self, reader):
        line = "x" * 1_000_000
        talk = conversation(UserMessage(line), AiMessage(line, line))

        html = html_of(reader, page("change", talk.pk))
        alone = html_of(reader, page("message", talk.pk, 1))

        assert len(html) < 60_000
        assert "Truncated; the full text has 1,000,000 characters." in html
        assert 100_000 < len(alone) < 150_000
        assert line in reader.get(page("json", talk.pk, 1)).content.decode()

    @pytest.mark.parametrize("depth", [50, 5_000, 200_000], ids=["deep", "deeper", "deepest"])
    def test_deeply_nested_arguments_are_shown_as_text(self, reader, depth):
        arguments = "[" * depth + "]" * depth
        talk = conversation(AiMessage(tool_execution_requests=[ToolExecutionRequest("1", "t", arguments)]))

        assert len(html_of(reader, page("change", talk.pk))) < 60_000
        assert len(html_of(reader, page("message", talk.pk, 1))) < 400_000

    @pytest.mark.parametrize("payload", ["", "{", "[]", '{"type": "USER"}', '{"type": "EVIL", "text": "<b>"}', "null"])
    def test_a_corrupted_row_is_shown_as_far_as_possible(self, reader, payload):
        talk = conversation(UserMessage("Hi", name="Klaus"))
        Message.objects.update(payload=payload)

        html = html_of(reader, page("change", talk.pk))

        assert "cannot be read" in html
        assert "Hi" in html
        assert "cannot be read" in html_of(reader, page("message", talk.pk, 1))
        assert reader.get(page("json", talk.pk, 1)).content.decode() == payload
        assert reader.get(page("file", talk.pk, 1, 0)).status_code == 404


HUGE = "9" * 30
LONGER_THAN_PYTHON_READS = "9" * 5_000


@pytest.mark.django_db  # On every database: they accept different values.
class TestListParameters:
    """Every parameter that Django's change list knows, and those that it takes for fields."""

    @pytest.mark.parametrize(
        "query",
        [
            {"metadata__key__startswith": "s"},
            {"metadata__key": "secret"},
            {"metadata": "{}"},
            {"title__regex": "^(a+)+$"},
            {"memory_id__gt": "a"},
            {"messages__text__contains": "secret"},
            {"messages": "1"},
            {"messages__conversation": "1"},
            {"owner__password__startswith": "md5"},
            {"owner__id": "1"},
            {"owner_id": HUGE},
            {"owner__isnull": "0"},
            {"id": "1"},
            {"id__in": HUGE},
            {"id__range": "1"},
            {"updated_at__range": "0"},
            {"updated_at__year": "2026"},
            {"active_hour": "1"},
            {"updated_at__gte": "2026-01-01"},
            {"updated_at__date": "2026-01-01"},
            {"created_at__year": "0"},
            {"is_pinned__exact": "1"},
            {"counted_by": "words"},
            {"_changelist_filters": "q=a"},
            {"nothing": "1"},
            {"__": "1"},
            {"_to_field": "title"},
            {"q": "x" * 10_000},
            {"o": "1." * 5_000},
        ],
        ids=lambda query: next(iter(query)),
    )
    def test_unsupported_lookups_are_rejected_without_reading_conversations(
        self, reader, query, django_assert_max_num_queries
    ):
        with django_assert_max_num_queries(5) as captured:
            response = reader.get(page("changelist"), query)

        assert response.status_code == 400
        assert not any("chatmemory_conversation" in statement["sql"] for statement in captured)

    @pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "America/New_York"])
    @pytest.mark.parametrize("use_tz", [True, False], ids=["aware", "naive"])
    def test_an_invalid_date_redirects_to_the_unfiltered_list(self, reader, settings, use_tz, zone):
        settings.USE_TZ, settings.TIME_ZONE = use_tz, zone
        conversation(UserMessage("Hi"))

        for day in (
            *("9999-12-31", "10000-01-01", "0001-01-01", "1000-12-31", "-1", "abc", "2026", "2026-13-01", "2026-02-30"),
            *("2026-02-03T00:00", "a\0", "٢٠٢٦-02-03", HUGE, LONGER_THAN_PYTHON_READS),
        ):
            response = reader.get(page("changelist"), {"until": day})
            assert (response.status_code, response.get("Location")) == (302, f"{page('changelist')}?e=1"), day

    @pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "America/New_York"])
    @pytest.mark.parametrize("day", ["1001-01-01", "9998-12-31"])
    def test_every_date_a_database_supports_can_be_queried(self, reader, settings, day, zone):
        settings.TIME_ZONE = zone
        conversation(UserMessage("Hi"))

        assert reader.get(page("changelist"), {"until": day}).status_code == 200

    @pytest.mark.parametrize(
        "name",
        mostly_slow(
            [
                *("q", "p", "o", "e", "all", "_facets", "_popup"),
                *(["_source_model"] if django.VERSION >= (6, 1) else []),
                *("owner", "active", "until", "memory", "evictions", "problem", "flag"),
            ]
        ),
    )
    def test_supported_parameters_accept_any_value(self, reader, monkeypatch, name):
        monkeypatch.setattr(ConversationAdmin, "list_per_page", 1)  # Enough for several pages.
        monkeypatch.setattr(ConversationAdmin, "list_max_show_all", 1)
        conversation(UserMessage("Hi"), memory_id="a")
        conversation(UserMessage("Hi"), memory_id="b")

        for value in ("", "0", "-1", "x", "1.5", "a\0", "é", "😀", "%", HUGE, "9" * 4_500, ".-.--1."):
            also = {"q": "Hi", "_popup": "1", "_to_field": "id"}
            for query in ({name: value}, {name: [value, "1"]}, {**also, name: value}):
                response = reader.get(page("changelist"), query)
                is_list = response.status_code == 200
                assert is_list or response["Location"] == f"{page('changelist')}?e=1", (query, response)

    def test_lookups_of_custom_filters_are_allowed_as_django_allows_them(self, rf):
        class Own(ConversationAdmin):
            list_filter = (*ConversationAdmin.list_filter, "owner__is_staff", ("is_pinned", BooleanFieldListFilter))

        own, request = Own(Conversation, site), rf.get("/")

        assert own.lookup_allowed("owner__is_staff__exact", "1", request)
        assert own.lookup_allowed("is_pinned__exact", "1", request)
        assert not own.lookup_allowed("owner__is_superuser__exact", "1", request)
        assert not own.lookup_allowed("owner__is_staffed", "1", request)

    def test_only_values_in_limit_choices_to_of_a_foreign_key_are_allowed(self, rf, monkeypatch):
        limits = [{"is_archived": False}, lambda: {"metadata__kind": "support"}]
        monkeypatch.setattr(Conversation._meta, "related_fkey_lookups", limits)
        own, request = ConversationAdmin(Conversation, site), rf.get("/")

        assert own.lookup_allowed("is_archived", "0", request)
        assert own.lookup_allowed("metadata__kind", "support", request)
        assert not own.lookup_allowed("is_archived", "1", request)
        assert not own.lookup_allowed("metadata__kind", "sales", request)

    @pytest.mark.parametrize("action", ["clear_memory", "delete_selected", "recount_tokens", "export_conversations"])
    @pytest.mark.parametrize(
        "key",
        mostly_slow(
            ["x", "", "-1", "1.0", " 1", "1_0", "\0", "1\0", "٢", "😀", "\ud800", HUGE, LONGER_THAN_PYTHON_READS],
            one_in=3,
        ),
    )
    def test_an_invalid_selected_key_is_rejected(self, reader, action, key):
        talk = conversation(UserMessage("Hi"))

        for others in ({}, {"select_across": "1"}, {"index": "0"}, {"action": "nothing"}):
            data = {"action": action, "_selected_action": [talk.pk, key], "confirmed": "delete", **others}
            body = urlencode(data, doseq=True, errors="surrogatepass")
            response = reader.post(page("changelist"), body, content_type="application/x-www-form-urlencoded")
            assert response.status_code == 400, others
        assert Conversation.objects.count() == 1

    def test_unknown_or_too_many_keys_have_no_effect(self, reader, settings):
        conversation(UserMessage("Hi"))
        gone = ["0", "9" * 18]
        data = {"action": "delete_selected", "confirmed": "delete"}

        assert reader.post(page("changelist"), {**data, "_selected_action": gone}).status_code == 302
        assert reader.post(page("changelist"), {**data, "_selected_action": range(10_000)}).status_code == 400
        assert Conversation.objects.count() == 1

    @pytest.mark.slow
    def test_ten_thousand_can_be_selected_if_the_site_allows_such_a_large_form(self, reader, settings):
        settings.DATA_UPLOAD_MAX_NUMBER_FIELDS = None
        talk = conversation(UserMessage("Hi"))
        others = range(talk.pk + 1, talk.pk + 10_000)

        data = {"action": "clear_memory", "confirmed": "clear", "_selected_action": [talk.pk, *others]}

        assert reader.post(page("changelist"), data).status_code == 302
        assert Conversation.objects.get().memory_messages == 0

    @pytest.mark.parametrize("index", mostly_slow(["", "x", "-1", "-9", "5", HUGE, LONGER_THAN_PYTHON_READS], one_in=3))
    @pytest.mark.parametrize("action", ["", "nothing", "clear_memory", "a\0"])
    def test_an_unknown_action_is_ignored(self, reader, action, index):
        talk = conversation(UserMessage("Hi"))

        response = post_action(reader, action, [talk], index=index, select_across="x")

        assert response.status_code in {200, 302}
        assert Conversation.objects.count() == 1

    @pytest.mark.parametrize("method", ["put", "patch", "delete", "options", "head", "trace"])
    def test_no_http_method_changes_anything_or_fails(self, reader, method):
        talk = conversation(UserMessage("Hi"))

        for address in (page("changelist"), page("change", talk.pk), page("message", talk.pk, 1)):
            assert getattr(reader, method)(address).status_code < 500
        assert Conversation.objects.get().memory_messages == 1


@pytest.mark.django_db
@pytest.mark.parametrize(
    "tail", mostly_slow(["change/", "delete/", "history/", "clear/", "recount/", "export/", ""], one_in=3)
)
def test_the_url_of_an_unknown_conversation_redirects_to_the_list_or_is_not_found(reader, tail):
    conversation(UserMessage("Hi"))
    numbers = ("0", "-1", "1%0a", "1_2E0", "%D9%A9" * 9, HUGE, LONGER_THAN_PYTHON_READS)
    others = ("x", "_5F", "_00", "%00", "%F0%9F%98%80", "%ED%A0%80")

    for key in numbers + others:
        for query in ("", "?_to_field=x", f"?before={HUGE}&after=x&q=%00&_popup=1", "?_changelist_filters=%00%ED"):
            for ask in (reader.get, partial(reader.post, data={"confirmed": tail.rstrip("/")})):
                response = ask(f"{page('changelist')}{key}/{tail}{query}")
                assert response.status_code in {301, 302, 403, 404}, (key, query)
    assert Conversation.objects.get().memory_messages == 1


@pytest.mark.django_db
@pytest.mark.parametrize("number", ["0", HUGE, "9" * 4_000])
def test_the_url_of_an_unknown_message_or_file_is_not_found(reader, number):
    talk = conversation(UserMessage("Hi"))

    for tail in (f"{number}/", f"{number}/json/", f"{number}/files/0/", f"1/files/{number}/"):
        assert reader.get(f"{page('changelist')}{talk.pk}/messages/{tail}").status_code == 404


def picture(image: Image) -> UserMessage:
    return UserMessage([TextContent("Look"), ImageContent(image)])


class TestFiles:
    def test_an_embedded_image_is_served_by_the_site(self, reader):
        talk = conversation(picture(Image(base64_data=PNG_BASE64, mime_type="image/png")))

        html = html_of(reader, page("change", talk.pk))
        response = reader.get(page("file", talk.pk, 1, 1))

        assert f'<img src="{page("file", talk.pk, 1, 1)}" alt="Image (image/png, 1 KiB)"' in html
        assert "data:" not in html
        assert response.content == PNG
        assert response["Content-Type"] == "image/png"
        assert response["Content-Security-Policy"] == "default-src 'none'; sandbox"
        assert response["X-Content-Type-Options"] == "nosniff"

    @pytest.mark.parametrize(
        "image",
        [
            Image(base64_data=HTML_BASE64, mime_type="image/png"),
            Image(base64_data=HTML_BASE64, mime_type="text/html"),
            Image(base64_data=SVG_BASE64, mime_type="image/svg+xml"),
            Image(url=f"data:text/html;base64,{HTML_BASE64}"),
            Image(url="data:text/html,<script>alert(1)</script>"),
            Image(url=f"DATA:image/svg+xml;base64,{SVG_BASE64}"),
        ],
        ids=["html_as_png", "html", "svg", "data_html_base64", "data_html", "data_svg"],
    )
    def test_a_file_that_is_not_an_image_is_a_download_whatever_its_declared_type(self, reader, image):
        talk = conversation(picture(image))

        html = html_of(reader, page("change", talk.pk))
        response = reader.get(page("file", talk.pk, 1, 1))

        assert_harmless(html)
        assert "<img" not in html
        assert "of an unknown type" in html
        assert response["Content-Type"] == "application/octet-stream"
        assert response["Content-Disposition"].startswith("attachment; ")

    @pytest.mark.parametrize("text", ["a", "====", "<script>", "Zm9v!", "é", "\ud7ff"])
    def test_invalid_base64_is_reported_and_not_served(self, reader, text):
        talk = conversation(picture(Image(base64_data=text)))

        assert "with invalid Base64 data" in html_of(reader, page("change", talk.pk))
        assert reader.get(page("file", talk.pk, 1, 1)).status_code == 404

    @pytest.mark.parametrize(
        "url",
        [
            "javascript:alert(1)",
            "JaVaScRiPt:alert(1)",
            "java\tscript:alert(1)",
            " https://example.com/",
            "//example.com/a.png",
            "file:///etc/passwd",
            "vbscript:x",
            "https://",
            "https://bank.example@evil.example/",
            "https://evil.example/\u202egnp.exe",
            "https://[::1/",
            'https://example.com/"onclick="alert(1)',
            "https://example.com/" + "a" * 2_000,
            "data:",
        ],
    )
    def test_only_plain_web_addresses_become_links(self, reader, url):
        talk = conversation(picture(Image(url=url)))

        html = html_of(reader, page("change", talk.pk))

        assert_harmless(html)
        links = [attributes.get("href") for tag, attributes in Elements(html).found if tag == "a"]
        assert not any("example" in (link or "") for link in links)
        assert not is_link(url)

    @pytest.mark.parametrize(
        "content",
        [
            ImageContent(Image(url="https://example.com/a?b=1&c=2")),
            AudioContent(Audio(url="https://example.com/a?b=1&c=2")),
            VideoContent(Video(url="https://example.com/a?b=1&c=2")),
            PdfFileContent(PdfFile(url="https://example.com/a?b=1&c=2")),
        ],
        ids=["image", "audio", "video", "pdf"],
    )
    def test_remote_files_are_links_and_load_only_if_the_site_allows_it(self, reader, settings, content):
        talk = conversation(UserMessage([content]))

        html = html_of(reader, page("change", talk.pk))
        settings.CHATMEMORY = {"REMOTE_MEDIA": True}
        allowed = html_of(reader, page("change", talk.pk))

        assert_harmless(html)
        (link,) = [each for tag, each in Elements(html).found if tag == "a" and "example.com" in each.get("href", "")]
        assert link["href"] == "https://example.com/a?b=1&c=2"
        assert {"noopener", "noreferrer", "nofollow"} <= set(link["rel"].split())
        fetched = [each for _tag, each in Elements(allowed).found if "example.com" in each.get("src", "")]
        assert len(fetched) == (0 if isinstance(content, PdfFileContent) else 1)

    def test_a_missing_file_is_not_found(self, reader):
        talk = conversation(picture(Image(url="https://example.com/a.png")))

        for index in (0, 1, 2, 99):
            assert reader.get(page("file", talk.pk, 1, index)).status_code == 404

    def test_users_without_permission_to_read_get_no_files(self, client, db):
        talk = conversation(picture(Image(base64_data=PNG_BASE64)))
        client.force_login(staff("view_conversation"))

        assert client.get(page("file", talk.pk, 1, 1)).status_code == 403
        assert "Image" not in html_of(client, page("change", talk.pk))


class TestMedia:
    @pytest.mark.parametrize(
        ("content", "name"),
        [
            (PNG, "image/png"),
            (b"\xff\xd8\xff\xe0", "image/jpeg"),
            (b"GIF89a", "image/gif"),
            (b"RIFF\n\0\0\0WEBPVP8 ", "image/webp"),
            (b"RIFF\n\0\0\0WAVEfmt ", "audio/wav"),
            (b"ID3\x04", "audio/mpeg"),
            (b"OggS", "audio/ogg"),
            (b"fLaC", "audio/flac"),
            (b"\0\0\0\x20ftypM4A ", "audio/mp4"),
            (b"\0\0\0\x20ftypisom", "video/mp4"),
            (b"\x1aE\xdf\xa3", "video/webm"),
            (b"%PDF-1.7", "application/pdf"),
            (b"<html>", ""),
            (b"", ""),
        ],
    )
    def test_the_type_of_a_file_is_detected_from_its_first_bytes(self, content, name):
        assert file_type(content) == name

    def test_each_type_of_content_is_described(self):
        data = base64.b64encode(b"%PDF-1.7").decode()
        sound = media_of(AudioContent(Audio(binary_data=b"ID3\x04")))
        document = media_of(PdfFileContent(PdfFile(base64_data=data)))

        assert (sound.kind, sound.file.is_sound, sound.file.extension) == ("audio", True, "mp3")
        assert (document.kind, document.file.is_preview, document.file.extension) == ("pdf", False, "pdf")
        assert media_of(VideoContent()).label == "Video (not included)"
        assert media_of(TextContent("x")) is None
        assert media_of(None) is None


class TestWording:
    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("plain\n\ttext\r\n", "plain\n\ttext\n"),
            ("a\u202eb", "a⟦U+202E⟧b"),
            ("\x1b[31m", "⟦U+001B⟧[31m"),
            ("\ud83d", "⟦U+D83D⟧"),
            ("שלום \u200f עולם", "שלום \u200f עולם"),
            ("👩\u200d🚀 क्\u200dष", "👩\u200d🚀 क्\u200dष"),
        ],
        ids=["plain", "override", "escape", "surrogate", "hebrew", "joiners"],
    )
    def test_invisible_control_characters_are_named_and_scripts_stay_intact(self, text, shown):
        assert visible(text) == shown

    def test_an_excerpt_states_the_full_length(self):
        assert excerpt("abc", limit=2) == ("ab", 3)
        assert excerpt("abc", limit=2).is_cut
        assert not excerpt("abc", limit=3).is_cut
        assert not excerpt("a\u202eb").is_cut

    def test_numbers_too_large_for_python_stay_text(self):
        assert pretty_json("9" * 4_000).text == "9" * 4_000
        assert pretty_json("NaN").text == "NaN"
