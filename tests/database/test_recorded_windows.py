"""Recorded runs of LangChain4j's windows, replayed on the store in the database."""

from collections.abc import Callable

import pytest
from django.db import connection

from chatmemory_django.stores import ChatMemoryStore
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.estimators import ADDITIVE_WORDS
from tests.quick import mostly_slow
from tests.replay import recorded, replay

pytestmark = pytest.mark.django_db

STORES: dict[str, Callable[[object], ChatMemoryStore]] = {"django": lambda memory_id: DjangoChatMemoryStore()}
if connection.vendor == "sqlite":  # The windows are the same with and without history; both on one database is enough.
    STORES["django_without_history"] = lambda memory_id: DjangoChatMemoryStore(keep_history=False)


@pytest.mark.parametrize("store", STORES.values(), ids=STORES.keys())
class TestSameAsLangChain4j:
    @pytest.mark.parametrize(("trace", "pool"), mostly_slow(recorded("message_window"), one_in=3))
    def test_a_message_window_behaves_as_recorded(self, store, trace, pool):
        replay(trace, pool, store)

    @pytest.mark.parametrize(("trace", "pool"), mostly_slow(recorded("token_window"), one_in=3))
    def test_a_token_window_behaves_as_recorded(self, store, trace, pool):
        replay(trace, pool, store)

    @pytest.mark.slow
    @pytest.mark.parametrize(("trace", "pool"), recorded("token_window"))
    def test_a_token_window_with_stored_counts_behaves_as_recorded(self, store, trace, pool):
        replay(trace, pool, store, ADDITIVE_WORDS)
