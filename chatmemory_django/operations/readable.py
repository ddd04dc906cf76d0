"""
Export of conversations for people who read them: as plain text, or as one page of HTML without scripts.

Like an export as JSON lines, it has every message on every branch, except removed ones, and reads a few at a time. It
cannot be imported again. What was written is never taken for a part of the document: its lines are indented in the
text, and escaped in the page.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Iterator
from functools import partial
from tempfile import SpooledTemporaryFile
from typing import IO, Any, NamedTuple, TypeAlias

from django.db.models import QuerySet
from django.utils import timezone, translation
from django.utils.html import format_html, format_html_join
from django.utils.safestring import mark_safe
from django.utils.translation import gettext as _

from chatmemory_django.core.media import Source, file_of, holds_file
from chatmemory_django.core.shown import visible
from chatmemory_django.db.moments import aware
from chatmemory_django.db.row_codec import UNREADABLE, unreadable_as
from chatmemory_django.messages import (
    AiMessage,
    AudioContent,
    ChatMessage,
    Content,
    CustomMessage,
    ImageContent,
    MessageType,
    PdfFileContent,
    TextContent,
    ToolExecutionResultMessage,
    UserMessage,
    VideoContent,
)
from chatmemory_django.models import Conversation
from chatmemory_django.models.columns import to_message
from chatmemory_django.models.copies import of_owners
from chatmemory_django.models.messages import REMOVED
from chatmemory_django.operations.jsonl.lines import SPOOL_BYTES
from chatmemory_django.operations.one_by_one import Refused, at_one_moment, going_on, keys, messages_of, pages

MAX_ADDRESS = 2_000
"""Maximum number of characters of a file's address that is written."""

STYLE = """
body { max-width: 46rem; margin: 2rem auto; padding: 0 1rem; font: 1rem/1.5 system-ui, sans-serif; }
:root { color-scheme: light dark; }
article { margin: 1rem 0; padding: 0.5rem 1rem; border: 1px solid; border-radius: 0.5rem; break-inside: avoid; }
h1 { font-size: 1.4rem; } h2 { margin: 0; font-size: 0.9rem; } h3 { margin: 0.5rem 0 0; font-size: 0.85rem; }
p { margin: 0.25rem 0; white-space: pre-wrap; overflow-wrap: anywhere; }
time, .mark { font-weight: 400; }
"""

_COLUMNS = ("sequence", "created_at", "type", "text", "payload", "on_path", "is_complete")

Spoken: TypeAlias = tuple[str, datetime.tzinfo]
"""The language and the time zone of a document."""

Part: TypeAlias = tuple[str, str]
"""A piece of a message: its name, empty for the text that was written, and its text."""


class WrittenMessage(NamedTuple):
    """A message as it is written."""

    sequence: int
    author: str
    moment: datetime.datetime
    marks: tuple[str, ...]
    """What else there is to say about it: that it is on another branch, for example."""
    parts: tuple[Part, ...]


class Form(NamedTuple):
    """How a document is written."""

    before: Callable[[], str]
    """Returns what precedes all conversations."""
    conversation: Callable[[str, list[Part]], str]
    """Returns what precedes the messages of a conversation: its title, and facts about it."""
    entry: Callable[[WrittenMessage], str]
    """Returns a message."""
    after: str = ""
    """What follows all conversations."""


def _text_of_conversation(title: str, facts: list[Part]) -> str:
    lines = [title, "=" * min(72, len(title)), *(f"{name}: {value}" for name, value in facts)]
    return "".join(f"{' '.join(line.split())}\n" for line in lines) + "\n"


def _text_of_entry(entry: WrittenMessage) -> str:
    marks = "".join(f" ({each})" for each in entry.marks)
    lines = [f"#{entry.sequence} {' '.join(entry.author.split())}, {_moment(entry.moment)}{marks}"]
    for name, text in entry.parts:
        lines += [f"  {name}:"] if name else []
        lines += [f"    {line}" for line in text.splitlines()]
    return "\n".join(lines) + "\n\n"


def _beginning_of_page() -> str:
    return format_html(
        '<!DOCTYPE html>\n<html lang="{}">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<title>{}</title>\n<style>{}</style>\n"
        "</head>\n<body>\n",
        translation.get_language() or "en",
        _("Conversations"),
        mark_safe(STYLE),  # noqa: S308  # a constant
    )


def _html_of_conversation(title: str, facts: list[Part]) -> str:
    listed = format_html_join("\n", "<p>{}: <bdi>{}</bdi></p>", facts)
    return format_html('<h1 dir="auto">{}</h1>\n{}\n', title, listed)


def _html_of_entry(entry: WrittenMessage) -> str:
    headings = (format_html("<h3>{}</h3>\n", name) if name else "" for name, _text in entry.parts)
    texts = (text for _name, text in entry.parts)
    return format_html(
        '<article>\n<h2>#{} <bdi>{}</bdi>, <time datetime="{}">{}</time>{}</h2>\n{}</article>\n',
        entry.sequence,
        entry.author,
        entry.moment.isoformat(),
        _moment(entry.moment),
        format_html_join("", ' <span class="mark">({})</span>', ((each,) for each in entry.marks)),
        format_html_join("", '{}<p dir="auto">{}</p>\n', zip(headings, texts, strict=True)),
    )


TEXT = Form(lambda: "", _text_of_conversation, _text_of_entry)
"""A plain text: what was written is indented, and everything else is not."""

HTML = Form(_beginning_of_page, _html_of_conversation, _html_of_entry, "</body>\n</html>\n")
"""A page of HTML: everything is escaped, and nothing is loaded from elsewhere."""


def export_pieces(
    conversations: QuerySet[Conversation],
    form: Form,
    *,
    types: Collection[MessageType] | None = None,
    refused: Refused | None = None,
    owner: object = None,
) -> Iterator[str]:
    """
    Yield *conversations* in *form*, with all of their messages or those of *types*, piece by piece; then what belongs
    to *owner*, the primary key of a user, and to no conversation.

    The language and the time zone are those that are active when this is called. Each conversation is a snapshot of the
    moment when its turn comes, as in ``export_lines``. Of those that are refused, the document shows why.
    """
    spoken = translation.get_language() or "en", timezone.get_current_timezone()
    return _pieces(conversations, partial(_spool, form, types, spoken, {}), form, spoken, refused, owner)


def _pieces(
    conversations: QuerySet[Conversation],
    spooled: Any,
    form: Form,
    spoken: Spoken,
    refused: Refused | None,
    owner: object,
) -> Iterator[str]:
    left_out: list[str] = []

    def refuse(conversation: Conversation, error: Any) -> None:
        with translation.override(spoken[0]):
            facts = [(_("Messages"), str(UNREADABLE).format(error.key_id))]
            left_out.append(form.conversation(visible(conversation.memory_id), facts))
        if refused is not None:
            refused(conversation, error)

    with translation.override(spoken[0]):
        before = form.before()
    yield before
    for key in keys(conversations):
        with SpooledTemporaryFile(SPOOL_BYTES) as spool:
            head = None
            with going_on(conversations, key, None if refused is None else refuse):
                head = at_one_moment(conversations, key, partial(spooled, spool))
            yield from left_out
            left_out.clear()
            if head is not None:
                yield head
                spool.seek(0)
                yield from (line.decode() for line in spool)
    for each in of_owners if owner is not None else ():
        with unreadable_as(str(UNREADABLE)):
            found = [content for _, content in each.exported(owner, conversations.db)]
        with translation.override(spoken[0]):
            title = str(each.model._meta.verbose_name)
        for content in found:
            yield form.conversation(title, [(name, visible(str(value))) for name, value in content.items()])
    yield form.after


def _spool(
    form: Form,
    types: Collection[MessageType] | None,
    spoken: Spoken,
    owners: dict[Any, str],
    spool: IO[bytes],
    conversation: Conversation,
) -> str:
    """
    Write the messages of *conversation* to *spool*, and return what precedes them. *owners* are the names of those that
    were read before, by their keys; its own is added.
    """
    spool.seek(0)
    spool.truncate()
    with translation.override(spoken[0]), timezone.override(spoken[1]):
        if conversation.owner_id not in owners:
            owners[conversation.owner_id] = "" if conversation.owner is None else visible(str(conversation.owner))
        owner = owners[conversation.owner_id]
        rows = messages_of(conversation).history(all_branches=True).exclude(REMOVED)
        rows = rows if types is None else rows.filter(type__in=types)
        count = 0
        for page in pages(rows, *_COLUMNS):
            for row in page:
                spool.write(form.entry(_entry(row, owner)).encode())
            count += len(page)
        facts = [
            (_("Memory id"), visible(conversation.memory_id)),
            (_("Owner"), owner or _("No owner")),
            (_("Started"), _moment(conversation.created_at)),
            (_("Last activity"), _moment(conversation.updated_at)),
            (_("Messages"), str(count)),
        ]
        return form.conversation(visible(conversation.title or conversation.memory_id), facts)


def _entry(row: tuple[Any, ...], owner: str) -> WrittenMessage:
    sequence, moment, kind, text, payload, on_path, is_complete = row
    marks = [] if on_path else [_("on another branch")]
    marks += [] if is_complete else [_("incomplete turn")]
    try:
        message = to_message(kind, text, payload)
    except (KeyError, ValueError):
        return WrittenMessage(sequence, kind, moment, (*marks, _("unreadable")), (("", visible(text)),))
    if isinstance(message, ToolExecutionResultMessage) and message.is_error:
        marks.append(_("failed"))
    parts = tuple((name, visible(part)) for name, part in _parts(message))
    return WrittenMessage(sequence, visible(_author(message, owner)), moment, tuple(marks), parts)


def _author(message: ChatMessage, owner: str) -> str:
    match message:
        case UserMessage():
            return message.name or owner or _("User")
        case ToolExecutionResultMessage():
            return f"{_('Tool result')} {message.tool_name or ''}".strip()
    return {MessageType.SYSTEM: _("System"), MessageType.AI: _("AI")}.get(message.type, _("Custom"))


def _parts(message: ChatMessage) -> Iterator[Part]:
    match message:
        case UserMessage() | ToolExecutionResultMessage():
            yield from (_content(each) for each in message.contents if each is not None)
        case AiMessage():
            if message.thinking:
                yield _("Thinking"), message.thinking
            if message.text:
                yield "", message.text
            for call in message.tool_execution_requests:
                yield _("Calls %(name)s") % {"name": visible(call.name or "?")}, call.arguments or ""
        case CustomMessage():
            pass
        case _:
            yield "", message.text


def _content(content: Content) -> Part:
    given: Source | None
    match content:
        case TextContent():
            return "", content.text
        case ImageContent(image=given):
            name = _("Image")
        case AudioContent(audio=given):
            name = _("Audio")
        case VideoContent(video=given):
            name = _("Video")
        case PdfFileContent(pdf_file=given):
            name = _("PDF document")
    if given is None:
        return name, _("not included")
    if not holds_file(given):
        return name, (given.url or "")[:MAX_ADDRESS]
    file = file_of(given)
    if given.file is not None:
        file_type, size = given.file.type, given.file.size
    elif file is not None:
        file_type, size = file.type, len(file.content)
    else:
        return name, _("unreadable")
    return name, f"{file_type or '?'}, {max(1, round(size / 1024))} KiB"


def _moment(value: datetime.datetime) -> str:
    """Return *value* in the active time zone, with its name, and in the same way in every language."""
    local = timezone.localtime(aware(value))
    return f"{local:%Y-%m-%d %H:%M:%S %Z}"
