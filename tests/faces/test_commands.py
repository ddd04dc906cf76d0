"""The management commands: their output, and that they can be interrupted at any time."""

import io
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command, load_command_class
from django.db import connection, models
from django.utils import timezone

from chatmemory_django.chat.models import AnswerChunk, ModelCall, Run
from chatmemory_django.chat.runs.deleting import KEEP
from chatmemory_django.management import base
from chatmemory_django.management.base import ProgressBar
from chatmemory_django.memory import MessageWindowChatMemory
from chatmemory_django.messages import Image, ImageContent, UserMessage
from chatmemory_django.models import Conversation, Message, copies, remains
from chatmemory_django.provider import get_chat_memory
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.database.test_operations import everything_is_whole, holding
from tests.faces.admin.admin_site import TOKEN_WINDOW
from tests.quick import mostly_slow

pytestmark = pytest.mark.django_db

ROOT = Path(__file__).parents[2]
U1, U2, U3 = (UserMessage(text) for text in ("one", "two", "three"))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def a_conversation(memory_id: str = "a", owner: User | None = None, count: int = 3) -> Conversation:
    """Create a conversation with *count* messages, the last two of them in the memory."""
    store = DjangoChatMemoryStore(owner=owner)
    MessageWindowChatMemory(max_messages=2, id=memory_id, store=store).add(*[U1] * count)
    return Conversation.objects.get(memory_id=memory_id)


def run(*arguments: object, stderr: io.StringIO | None = None) -> str:
    """Return the output of the command."""
    out = io.StringIO()
    call_command(*map(str, arguments), stdout=out, stderr=stderr or io.StringIO())
    return out.getvalue()


def interrupted_at(number: int) -> Callable:
    """Return a function that simulates Ctrl-C when it is called the *number*th time."""
    calls = iter(range(1, number))

    def advance(*args: object) -> None:
        if next(calls, None) is None:
            raise KeyboardInterrupt

    return advance


def make_old(days: int = 10) -> None:
    moment = timezone.now() - timedelta(days=days)
    Message.objects.update(created_at=moment)
    Conversation.objects.update(updated_at=moment)


class TestPrune:
    def test_prune_deletes_old_history(self):
        a_conversation()
        make_old()

        assert run("prune_chatmemory", "--history-older-than", 9) == (
            "Erased 0 idle or temporary conversations and 1 old messages of others.\n"
        )
        assert Message.objects.count() == 2
        assert run("prune_chatmemory", "--history-older-than", 9).endswith("and 0 old messages of others.\n")

    def test_a_long_conversation_is_whole_if_it_is_stopped_in_the_middle_and_the_words_are_true(self, monkeypatch):
        a_conversation(count=7)
        make_old()
        monkeypatch.setattr(remains, "BATCH", 2)
        monkeypatch.setattr(ProgressBar, "advance", interrupted_at(2))

        with pytest.raises(CommandError, match=r"^Stopped\. What was deleted so far stays deleted") as stopped:
            run("prune_chatmemory", "--history-older-than", 9)

        assert stopped.value.returncode == base.INTERRUPTED
        assert Message.objects.count() == 5
        assert everything_is_whole()
        monkeypatch.undo()
        run("prune_chatmemory", "--history-older-than", 9)
        assert Message.objects.count() == 2

    def test_prune_erases_idle_conversations(self):
        a_conversation("old")
        make_old()
        a_conversation("new")

        assert run("prune_chatmemory", "--idle", 9).startswith("Erased 1 idle or temporary")
        assert Conversation.objects.get().memory_id == "new"

    def test_prune_deletes_old_calls(self):
        for days in (1, 10, 11):
            ModelCall.objects.create(purpose="answer", created_at=timezone.now() - timedelta(days=days))

        dry = run("prune_chatmemory", "--calls-older-than", 9, "--dry-run")

        assert dry == "Would have deleted the records of 2 calls.\n"
        assert run("prune_chatmemory", "--calls-older-than", 9) == "Deleted the records of 2 calls.\n"
        assert ModelCall.objects.count() == 1

    def test_prune_sums_the_calls_of_past_days_up(self):
        for days in (0, 1, 2):
            ModelCall.objects.create(purpose="answer", created_at=timezone.now() - timedelta(days=days))

        assert run("prune_chatmemory", "--sum-calls") == "Summed up 2 calls.\n"
        assert ModelCall.objects.count() == 3

    def test_prune_takes_the_periods_of_the_setting_unless_options_have_others(self, settings):
        settings.CHATMEMORY = {"RETENTION": {"IDLE": 9}}
        a_conversation("old")
        make_old()

        assert run("prune_chatmemory", "--idle", 90_000).startswith("Erased 0 ")
        assert run("prune_chatmemory", "--sum-calls") == "Summed up 0 calls.\n"
        assert run("prune_chatmemory", "--dry-run").startswith("Would have erased 1 ")
        assert run("prune_chatmemory").startswith("Erased 1 ")

    def test_prune_requires_an_age_or_an_index(self, settings):
        settings.CHATMEMORY = {}
        with pytest.raises(CommandError, match=r"--sum-calls, .*--calls-older-than DAYS.*or set") as found:
            run("prune_chatmemory")
        assert found.value.returncode == 2

    @pytest.mark.parametrize("options", [["--sum-calls"], ["--calls-older-than", 9], ["--search-index"]])
    def test_prune_has_no_options_of_apps_that_are_not_installed(self, settings, monkeypatch, options):
        monkeypatch.setattr(copies, "prunings", [])

        with pytest.raises(CommandError, match=f"unrecognized arguments: {options[0]}"):
            run("prune_chatmemory", *options)
        assert (
            run("prune_chatmemory", "--idle", 9)
            == "Erased 0 idle or temporary conversations and 0 old messages of others.\n"
        )
        settings.CHATMEMORY = {}
        with pytest.raises(CommandError, match="Use --history-older-than DAYS, or --idle DAYS, or set"):
            run("prune_chatmemory")

    def test_prune_does_what_an_app_registers(self, monkeypatch):
        seen = []

        def prune(using, asked, dry_run):
            seen.append((using, asked, dry_run))
            yield None
            yield f"Asked: {asked}."

        monkeypatch.setattr(copies, "prunings", [])
        copies.prunes(copies.Pruning(prune, "--words-older-than", "Words.", takes_days=True, steps="words"))

        assert run("prune_chatmemory", "--words-older-than", 9) == "Asked: 9 days, 0:00:00.\n"
        assert run("prune_chatmemory", "--idle", 9, "--dry-run").endswith("of others.\nAsked: None.\n")
        assert seen == [("default", timedelta(days=9), False), ("default", None, True)]

    def test_prune_deletes_the_rest_of_abandoned_streams(self):
        for answer_id, age in [("old", KEEP + 1), ("new", 0)]:
            written_at = timezone.now() - timedelta(seconds=age)
            AnswerChunk.objects.create(answer_id=answer_id, position=0, data="private", written_at=written_at)

        run("prune_chatmemory", "--idle", 9, "--dry-run")
        assert AnswerChunk.objects.count() == 2
        run("prune_chatmemory", "--idle", 9)
        assert AnswerChunk.objects.get().answer_id == "new"

    def test_prune_deletes_runs_that_ended_long_ago(self, settings):
        settings.CHATMEMORY = {"CHAT": {"RUN_SECONDS": 60}}
        key = a_conversation("c").pk
        for age in (61, 59):
            moment = timezone.now() - timedelta(seconds=age)
            moments = {"lease": moment, "listened_at": moment, "created_at": moment, "ended_at": moment}
            Run.objects.create(conversation_id=key, fence=age, next_sequence=1, state=Run.State.DONE, **moments)

        run("prune_chatmemory", "--idle", 9, "--dry-run")
        assert Run.objects.count() == 2
        run("prune_chatmemory", "--idle", 9)
        assert Run.objects.get().fence == 59

    def test_a_dry_run_deletes_nothing(self):
        a_conversation("old")
        make_old()

        assert run("prune_chatmemory", "--idle", 9, "--history-older-than", 9, "--dry-run") == (
            "Would have erased 1 idle or temporary conversations and 0 old messages of others.\n"
        )
        assert Message.objects.count() == 3

    def test_protected_conversations_are_reported_and_skipped(self):
        for memory_id in "ab":
            a_conversation(memory_id)
        make_old()
        output = io.StringIO()

        with holding("a"):
            assert run("prune_chatmemory", "--idle", 9, stderr=output).startswith("Erased 1 ")

        assert output.getvalue() == "'a' was not erased: other objects reference it (ProtectedError).\n"

    @pytest.mark.parametrize("days", ["0", "-1", "1.5", "100001", "9" * 30, "x", "²"])
    def test_prune_accepts_whole_days_only(self, days: str):
        with pytest.raises(CommandError, match="whole number of days from 1 to 100,000"):
            run("prune_chatmemory", f"--idle={days}")


class TestErase:
    @pytest.fixture
    def ann(self) -> User:
        ann = User.objects.create_user("ann")
        a_conversation("of ann", ann)
        a_conversation("another of ann", ann, count=5)
        a_conversation("without owner")
        return ann

    def test_erasing_a_user_prints_a_receipt(self, ann: User):
        receipt = json.loads(run("erase_chatmemory", "--user", "ann"))

        assert timedelta(0) <= datetime.now(UTC) - datetime.fromisoformat(receipt.pop("at")) < timedelta(minutes=1)
        assert receipt == {
            "database": "default",
            "dry_run": False,
            "erased": [{"memory_id": "of ann", "messages": 3}, {"memory_id": "another of ann", "messages": 5}],
            "refused": [],
            "messages": 8,
            "others": {},
            "files_to_delete": 0,
        }
        assert Conversation.objects.get().memory_id == "without owner"
        assert User.objects.get() == ann

    def test_single_conversations_can_be_erased(self, ann: User):
        receipt = json.loads(run("erase_chatmemory", "--memory-id", "without owner", "--memory-id", "of ann"))

        assert [each["memory_id"] for each in receipt["erased"]] == ["of ann", "without owner"]
        assert Conversation.objects.get().memory_id == "another of ann"

    def test_a_dry_run_prints_the_same_and_erases_nothing(self, ann: User):
        receipt = json.loads(run("erase_chatmemory", "--user", "ann", "--dry-run"))

        assert (receipt["messages"], receipt["dry_run"]) == (8, True)
        assert Conversation.objects.count() == 3

    def test_a_user_without_conversations_gets_an_empty_receipt(self):
        User.objects.create_user("bob")

        assert json.loads(run("erase_chatmemory", "--user", "bob"))["erased"] == []

    def test_protected_conversations_make_erase_fail_and_are_in_the_receipt(self, ann: User):
        out = io.StringIO()

        with (
            holding("of ann"),
            pytest.raises(CommandError, match="1 conversations were not erased: other objects reference them"),
        ):
            call_command("erase_chatmemory", "--user", "ann", stdout=out, stderr=io.StringIO())

        assert json.loads(out.getvalue())["refused"] == ["of ann"]
        assert json.loads(out.getvalue())["messages"] == 5

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            ((), "one of the arguments --user --memory-id is required"),
            (("--user", "ann", "--memory-id", "a"), "not allowed with"),
            (("--user", "cleo"), "There is no user 'cleo'"),
            (("--memory-id", "of ann", "--memory-id", "x"), "There is no conversation 'x'"),
            (("--user", "ann", "--database", "x"), "invalid choice"),
        ],
    )
    def test_an_unknown_user_is_an_error(self, ann: User, arguments: tuple[str, ...], error: str):
        with pytest.raises(CommandError, match=error):
            run("erase_chatmemory", *arguments)

        assert Conversation.objects.count() == 3


class TestExportAndImport:
    def test_an_export_can_be_imported(self, tmp_path: Path):
        file = tmp_path / "conversations.jsonl"
        for memory_id in "abc":
            a_conversation(memory_id)
        before = everything_is_whole()

        assert run("export_chatmemory", "--output", file) == ""
        Conversation.objects.all().delete()
        assert run("import_chatmemory", file) == "Imported 3 conversations.\n"

        assert everything_is_whole() == before
        assert [path.name for path in tmp_path.iterdir()] == ["conversations.jsonl"]

    @pytest.mark.parametrize("left", ["conversations.jsonl", "conversations.jsonl.part", None])
    def test_an_exported_file_can_only_be_read_by_the_account_that_exported(self, tmp_path: Path, left: str | None):
        if left is not None:
            (tmp_path / left).write_text("old")
            (tmp_path / left).chmod(0o666)
        a_conversation()
        before = os.umask(0)
        try:
            run("export_chatmemory", "--output", tmp_path / "conversations.jsonl")
        finally:
            os.umask(before)

        [file] = tmp_path.iterdir()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert "old" not in file.read_text()

    def test_untrusted_lines_hold_only_addresses_of_the_web(self, tmp_path: Path):
        file = tmp_path / "conversations.jsonl"
        get_chat_memory("a").add(UserMessage([ImageContent(Image(url="file:///etc/passwd"))]))
        run("export_chatmemory", "--output", file)
        Conversation.objects.all().delete()

        with pytest.raises(CommandError, match=r"Line 2: .*has the scheme 'file'"):
            run("import_chatmemory", file, "--untrusted")
        assert run("import_chatmemory", file) == "Imported 1 conversations.\n"

    @pytest.mark.parametrize(
        ("first", "reason"),
        [
            ('"temperature": NaN', "has the scheme 'file'"),
            (r'"text": "\ud800"', "has the scheme 'file'"),
            (f'"deep": {"[" * 9_000}{"]" * 9_000}', "verbatim is nested too deeply"),
            (f'"many": [{"{}," * 30_000}0]', "It has more than"),
        ],
        ids=["a number that JSON does not have", "a lone surrogate", "too deep", "too many values"],
    )
    def test_nor_do_they_in_the_words_of_another_framework(self, first: str, reason: str, tmp_path: Path):
        file = tmp_path / "conversations.jsonl"
        verbatim = f'{{"openai": {{{first}, "type": "input_image", "image_url": "file:///etc/passwd"}}}}'
        message = {"type": "USER", "contents": [{"type": "TEXT", "text": "Hello"}]}
        lines = (
            {"record": "conversation", "version": 1, "memory_id": "a"},
            {"record": "message", "message": message, "verbatim": verbatim},
        )
        file.write_text("\n".join(map(json.dumps, lines)))

        with pytest.raises(CommandError, match=rf"Line 2: .*{reason}"):
            run("import_chatmemory", file, "--untrusted")
        assert run("import_chatmemory", file) == "Imported 1 conversations.\n"

    def test_export_and_import_work_through_pipes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        a_conversation()
        text = run("export_chatmemory", "--memory-id", "a")
        Conversation.objects.all().delete()

        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert run("import_chatmemory", "-") == "Imported 1 conversations.\n"

    def test_conversations_of_a_user_can_be_imported_for_another(self, tmp_path: Path):
        ann, bob = (User.objects.create_user(name) for name in ("ann", "bob"))
        a_conversation("of ann", ann)
        a_conversation("without owner")
        file = tmp_path / "of-ann.jsonl"

        run("export_chatmemory", "--user", "ann", "--output", file)
        Conversation.objects.all().delete()
        run("import_chatmemory", file, "--user", "bob")

        assert Conversation.objects.get().owner == bob

    def test_an_import_can_resume_after_an_interruption(self, tmp_path: Path):
        file = tmp_path / "conversations.jsonl"
        for memory_id in "abc":
            a_conversation(memory_id)
        run("export_chatmemory", "--output", file)
        Conversation.objects.exclude(memory_id="b").delete()

        with pytest.raises(
            CommandError,
            match=r"Line 5: the conversation 'b' exists already. Imported 1 conversations before that line.",
        ):
            run("import_chatmemory", file)
        assert run("import_chatmemory", file, "--skip-existing") == "Imported 1 conversations.\n"

        assert Conversation.objects.count() == 3

    def test_import_ignores_token_counts_on_request(self, tmp_path: Path):
        file = tmp_path / "conversations.jsonl"
        a_conversation()
        Message.objects.update(token_count=7, counted_by="words")
        run("export_chatmemory", "--output", file)
        Conversation.objects.all().delete()

        run("import_chatmemory", file, "--untrusted")

        assert set(Message.objects.values_list("token_count", "counted_by")) == {(None, "")}

    @pytest.mark.parametrize("name", ["missing.jsonl", "."])
    def test_importing_a_missing_file_is_an_error(self, tmp_path: Path, name: str):
        with pytest.raises(CommandError, match=r"\[Errno"):
            run("import_chatmemory", tmp_path / name)

    def test_exporting_to_a_missing_folder_is_an_error(self, tmp_path: Path):
        with pytest.raises(CommandError, match=r"\[Errno"):
            run("export_chatmemory", "--output", tmp_path / "missing" / "x")


class TestRecount:
    def test_recount_reports_how_many_it_counted(self, settings):
        for memory_id in "ab":
            a_conversation(memory_id)
        settings.CHATMEMORY = TOKEN_WINDOW

        assert run("recount_chatmemory", "--memory-id", "a") == "Recounted the tokens of 1 conversations.\n"
        assert run("recount_chatmemory") == "Recounted the tokens of 2 conversations.\n"
        assert list(Conversation.objects.values_list("counted_by", flat=True)) == ["words", "words"]

    def test_recount_without_an_estimator_reports_it(self, settings):
        a_conversation()
        settings.CHATMEMORY = {}

        assert run("recount_chatmemory").endswith("1 others have no estimator whose counts can be stored.\n")


class TestCheck:
    def test_check_finds_nothing_in_intact_data(self):
        a_conversation()

        assert run("check_chatmemory") == "No problems found.\n"

    def test_check_prints_problems_and_fails(self):
        a_conversation("a\x1b[31m")
        Conversation.objects.update(memory_messages=7)
        out = io.StringIO()

        with pytest.raises(CommandError, match="1 findings") as failed:
            call_command("check_chatmemory", stdout=out)

        assert failed.value.returncode == 1
        assert out.getvalue() == "'a\\x1b[31m' memory_messages: It is 7, but 2 rows are in the memory.\n"

    def test_check_repairs_on_request(self):
        a_conversation()
        Conversation.objects.update(memory_messages=7)
        out = io.StringIO()

        with pytest.raises(CommandError):
            call_command("check_chatmemory", "--repair", stdout=out)

        assert out.getvalue().endswith("Repaired.\n")
        assert run("check_chatmemory") == "No problems found.\n"

    def test_check_uses_the_windows_of_the_settings(self, settings):
        a_conversation(count=3)
        settings.CHATMEMORY = {
            "MEMORY": {
                "CLASS": "chatmemory_django.memory.MessageWindowChatMemory",
                "OPTIONS": {"max_messages": 1},
            }
        }
        out = io.StringIO()

        with pytest.raises(CommandError):
            call_command("check_chatmemory", stdout=out)

        assert out.getvalue() == "'a' window: The memory takes 2 of 1.\n"


class TestInterruption:
    """Ctrl-C at any time ends a command without a traceback and leaves every conversation intact."""

    def stop_after(self, statements: int) -> Callable[..., object]:
        def wrapper(execute, sql, params, many, context):
            nonlocal statements
            result = execute(sql, params, many, context)
            statements -= 1
            # Otherwise Django does not notice that the transaction began; the real process ends at this point.
            if statements <= 0 and not sql.startswith("BEGIN"):
                raise KeyboardInterrupt
            return result

        return wrapper

    def is_stopped(self, after: int, *command: object) -> bool:
        """Return whether the command stopped after that many of its statements and reported it."""
        try:
            with connection.execute_wrapper(self.stop_after(after)):
                run(*command)
        except CommandError as stopped:
            return stopped.returncode == base.INTERRUPTED and "Stopped" in str(stopped)
        return False

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize(
        "command",
        mostly_slow(
            [
                "prune_chatmemory --history-older-than=9",
                "prune_chatmemory --idle=9",
                "erase_chatmemory --memory-id=a --memory-id=b",
                "recount_chatmemory",
                "check_chatmemory",
                "export_chatmemory",
            ]
        ),
    )
    def test_every_conversation_stays_intact(self, command: str, settings):
        settings.CHATMEMORY = TOKEN_WINDOW
        for after in range(1, 100):
            Conversation.objects.all().delete()
            for memory_id in "ab":
                a_conversation(memory_id)
            make_old()

            if not self.is_stopped(after, *command.split()):
                break
            assert set(everything_is_whole().values()) <= {2, 3}
        assert after > 5

    @pytest.mark.django_db(transaction=True)
    def test_an_import_leaves_no_partial_conversation(self, tmp_path: Path):
        file = tmp_path / "conversations.jsonl"
        for memory_id in "ab":
            a_conversation(memory_id)
        run("export_chatmemory", "--output", file)

        for after in range(1, 100):
            Conversation.objects.all().delete()

            if not self.is_stopped(after, "import_chatmemory", file):
                break
            assert set(everything_is_whole().values()) <= {3}
        assert after > 4  # two for each conversation

    def test_an_interrupted_erasure_prints_the_receipt_so_far(self):
        for memory_id in "abc":
            a_conversation(memory_id)
        out = io.StringIO()

        def stop_at_the_second(sender, instance, **kwargs):
            if instance.memory_id == "b":
                raise KeyboardInterrupt

        models.signals.pre_delete.connect(stop_at_the_second, sender=Conversation)
        try:
            with pytest.raises(CommandError, match="Stopped: 2 conversations were not erased") as stopped:
                call_command("erase_chatmemory", *[f"--memory-id={each}" for each in "abc"], stdout=out)
        finally:
            models.signals.pre_delete.disconnect(stop_at_the_second, sender=Conversation)

        assert stopped.value.returncode == base.INTERRUPTED
        assert json.loads(out.getvalue())["erased"] == [{"memory_id": "a", "messages": 3}]
        assert set(everything_is_whole()) == {"b", "c"}

    def test_an_interrupted_export_leaves_no_partial_file(self, tmp_path: Path):
        a_conversation()
        file = tmp_path / "x"
        file.write_text("what was there")

        with connection.execute_wrapper(self.stop_after(4)), pytest.raises(CommandError):
            run("export_chatmemory", "--output", file)

        assert [path.name for path in tmp_path.iterdir()] == ["x"]
        assert file.read_text() == "what was there"

    @pytest.mark.slow
    def test_ctrl_c_prints_no_traceback(self, tmp_path: Path):
        environment = {"DATABASE_URL": f"sqlite:///{tmp_path / 'db.sqlite3'}", "PYTHONPATH": str(ROOT)}
        manage = [sys.executable, str(ROOT / "manage.py")]
        subprocess.run([*manage, "migrate", "-v0"], env=environment, check=True)
        importing = subprocess.Popen(
            [*manage, "import_chatmemory", "-"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Background tests ignore Ctrl-C, and their child processes would inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        importing.stdin.write("\n" * 100_000)  # More than a pipe holds, so the process is reading.
        importing.stdin.flush()
        time.sleep(0.2)
        importing.send_signal(signal.SIGINT)
        _, output = importing.communicate()

        assert importing.returncode == base.INTERRUPTED
        assert output.splitlines()[-1] == "CommandError: Stopped. No conversation was left half-done."
        assert "Traceback" not in output


class TestProgress:
    def test_progress_is_a_bar_on_a_terminal(self):
        terminal = Terminal()
        for memory_id in "ab":
            a_conversation(memory_id)

        run("check_chatmemory", stderr=terminal)

        first, *_, last = terminal.getvalue().strip("\r").split("\r")
        assert first == "[" + "#" * 20 + "." * 20 + "]  50%  1 of 2 conversations"
        assert last == "[" + "#" * 40 + "] 100%  2 of 2 conversations\n"

    def test_progress_is_an_occasional_line_elsewhere(self, monkeypatch: pytest.MonkeyPatch):
        for memory_id in "ab":
            a_conversation(memory_id)
        silent, output = io.StringIO(), io.StringIO()

        run("check_chatmemory", stderr=silent)
        monkeypatch.setattr(base, "LINE_SECONDS", 0.0)
        run("check_chatmemory", stderr=output)

        assert silent.getvalue() == ""
        assert output.getvalue() == "1 of 2 conversations\n2 of 2 conversations\n"

    def test_progress_is_hidden_at_verbosity_0(self):
        terminal = Terminal()
        a_conversation()

        run("check_chatmemory", "-v0", stderr=terminal)

        assert terminal.getvalue() == ""

    def test_progress_counts_what_is_read_and_written(self, tmp_path: Path):
        file = tmp_path / "x"
        a_conversation()
        exporting, importing, piped = Terminal(), Terminal(), Terminal()

        run("export_chatmemory", "--output", file, stderr=exporting)
        Conversation.objects.all().delete()
        run("import_chatmemory", file, stderr=importing)
        make_old()
        run("prune_chatmemory", "--idle=1", stderr=piped)

        size = f"{file.stat().st_size:,}"
        assert exporting.getvalue().endswith("] 100%  3 of 3 messages\n")
        assert importing.getvalue().endswith(f"] 100%  {size} of {size} bytes\n")
        assert piped.getvalue().endswith("\r3 messages\n")

    def test_progress_of_nothing_is_empty(self):
        assert str(ProgressBar(Terminal(), "messages", 0)) == "0 messages"

    def test_queries_are_not_collected_under_debug(self, settings):
        settings.DEBUG = True
        for memory_id in "abcdef":
            a_conversation(memory_id)
        connection.queries_log.clear()

        run("check_chatmemory")

        assert len(connection.queries) < 20


@pytest.mark.parametrize("name", ["prune", "erase", "export", "import", "recount", "check"])
def test_each_describes_itself_and_its_options(name: str):
    command = load_command_class("chatmemory_django", f"{name}_chatmemory")
    options = command.create_parser("manage.py", name)._actions

    assert command.help.endswith(".")
    assert all(option.help for option in options)
    assert "--database" in [string for option in options for string in option.option_strings]


class TestKeywordArguments:
    """``call_command`` does not pass them to the parser, so the command does what that does."""

    @pytest.mark.parametrize("days", [1_000, "1000", timedelta(days=1_000)], ids=repr)
    def test_periods_are_days(self, days, db):
        out = io.StringIO()

        call_command("prune_chatmemory", idle=days, history_older_than=days, stdout=out, verbosity=0)

        assert "Erased 0 idle or temporary conversations and 0 old messages" in out.getvalue()

    def test_wrong_ones_are_errors_of_the_command(self, db):
        with pytest.raises(CommandError, match="idle is 'soon': "):
            call_command("prune_chatmemory", idle="soon", verbosity=0)

    @pytest.mark.parametrize("to_path", [str, Path])
    def test_files_are_paths(self, to_path, tmp_path, db):
        output = tmp_path / "a.jsonl"

        call_command("export_chatmemory", output=to_path(output), verbosity=0)

        assert output.exists()

    @pytest.mark.parametrize(
        ("name", "options"),
        [
            ("check_chatmemory", {"repair": True, "files": True}),
            ("recount_chatmemory", {"memory_ids": None}),
            ("erase_chatmemory", {"user": "ann"}),
            ("export_chatmemory", {"form": "text"}),
            ("run_chatmemory", {"once": True, "concurrency": "2"}),
        ],
    )
    def test_each_command_takes_them(self, name, options, db, django_user_model):
        django_user_model.objects.create_user("ann")

        call_command(name, **options, stdout=io.StringIO(), stderr=io.StringIO())
