"""MariaDB and MySQL know time zones from tables; other databases include them."""

import pytest
from django.core.checks import Warning, run_checks  # noqa: A004  # Django's name for it
from django.db import OperationalError, connection
from django.db.utils import ConnectionRouter

from chatmemory_django.checks import check_time_zones


class TestTimeZones:
    """MariaDB and MySQL know time zones from tables; other databases include them."""

    @pytest.fixture
    def own_zone(self, transactional_db):
        """Name a zone that this server knows once its rows are inserted, as the loading tools insert them."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT name FROM mysql.time_zone_name WHERE name = 'UTC'")
            names = ["Own/Zone"] if cursor.fetchone() else ["UTC", "Own/Zone"]
            keys = []
            for name in names:
                try:
                    cursor.execute("INSERT INTO mysql.time_zone (use_leap_seconds) VALUES ('N')")
                except OperationalError:
                    pytest.skip("The database user may not write to the time zone tables.")
                keys.append(cursor.lastrowid)
                cursor.execute("INSERT INTO mysql.time_zone_transition_type VALUES (%s, 0, 0, 0, 'X')", keys[-1:])
                cursor.execute("INSERT INTO mysql.time_zone_name VALUES (%s, %s)", [name, keys[-1]])
            yield "Own/Zone"
            for table in ("time_zone_name", "time_zone_transition_type", "time_zone"):
                cursor.execute(f"DELETE FROM mysql.{table} WHERE time_zone_id IN %s", [keys])

    @pytest.mark.skipif(connection.vendor != "mysql", reason="no other database needs time zone tables")
    def test_a_database_that_knows_the_zone_passes(self, settings, own_zone):
        settings.TIME_ZONE = own_zone

        assert check_time_zones(databases=["default"]) == []

    @pytest.mark.django_db
    @pytest.mark.parametrize(("use_tz", "zone"), [(False, "Antarctica/Vostok"), (True, "UTC")], ids=["naive", "utc"])
    def test_a_database_without_conversion_passes(self, settings, django_assert_num_queries, use_tz, zone):
        settings.USE_TZ, settings.TIME_ZONE = use_tz, zone

        with django_assert_num_queries(0):
            assert check_time_zones(databases=["default"]) == []

    @pytest.mark.django_db
    @pytest.mark.skipif(connection.vendor == "mysql", reason="MariaDB and MySQL need time zone tables")
    def test_databases_that_need_no_tables_pass(self, settings):
        settings.TIME_ZONE = "Antarctica/Vostok"

        assert check_time_zones(databases=["default"]) == []

    @pytest.mark.django_db
    @pytest.mark.skipif(connection.vendor != "mysql", reason="no other database needs time zone tables")
    def test_only_checked_databases_with_conversations_are_queried(self, settings, monkeypatch):
        settings.TIME_ZONE = "Nowhere/Land"

        def ids(**options) -> set[str]:
            return {str(message.id) for message in run_checks(**options)} & {"chatmemory.W004"}

        assert ids() == set()
        assert ids(databases=["default"]) == {"chatmemory.W004"}
        monkeypatch.setattr(ConnectionRouter, "allow_migrate_model", lambda *args: False)
        assert ids(databases=["default"]) == set()

    @pytest.mark.django_db
    @pytest.mark.skipif(connection.vendor != "mysql", reason="no other database needs time zone tables")
    def test_W004_the_database_does_not_know_the_time_zone(self, settings):
        settings.TIME_ZONE = "Nowhere/Land"

        [message] = check_time_zones(databases=["default"])

        assert isinstance(message, Warning)
        assert message.id == "chatmemory.W004"
        assert message.msg.startswith("DATABASES['default'] does not know the time zone 'Nowhere/Land', so")
        tool = "mariadb-tzinfo-to-sql" if connection.mysql_is_mariadb else "mysql_tzinfo_to_sql"
        assert message.hint.startswith(f"Load the time zone tables: {tool} /usr/share/zoneinfo | ")
