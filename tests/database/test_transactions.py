"""What is noted of a transaction, see ``chatmemory_django.db.transactions``."""

import pytest
from django.db import connection, transaction

from chatmemory_django.db.transactions import is_noted, note

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("fails", [False, True])
def test_a_note_is_there_until_the_transaction_ends(fails: bool):
    with transaction.atomic():
        note(connection, "a")
        note(connection, "a")
        with transaction.atomic():
            assert is_noted(connection, "a")
        assert (is_noted(connection, "a"), is_noted(connection, "b")) == (True, False)
        transaction.set_rollback(fails)

    assert not is_noted(connection, "a")
    with transaction.atomic():
        assert not is_noted(connection, "a")


def test_a_note_goes_with_the_savepoint_that_is_rolled_back():
    with transaction.atomic():
        note(connection, "a")
        with transaction.atomic():
            note(connection, "b")
            transaction.set_rollback(True)

        assert (is_noted(connection, "a"), is_noted(connection, "b")) == (True, False)


def test_a_note_goes_with_the_connection_that_is_closed():
    with transaction.atomic():
        note(connection, "a")
        connection.close()

    assert not is_noted(connection, "a")
