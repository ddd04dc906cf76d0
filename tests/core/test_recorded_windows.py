"""Recorded runs of LangChain4j's windows, replayed on the stores that need no database."""

from collections.abc import Callable

import pytest

from chatmemory_django.stores import ChatMemoryStore, InMemoryChatMemoryStore, SingleSlotChatMemoryStore
from tests.estimators import ADDITIVE_WORDS
from tests.replay import recorded, replay

STORES: dict[str, Callable[[object], ChatMemoryStore]] = {
    "in_memory": lambda memory_id: InMemoryChatMemoryStore(),
    "single_slot": SingleSlotChatMemoryStore,
}


@pytest.mark.parametrize("store", STORES.values(), ids=STORES.keys())
class TestSameAsLangChain4j:
    @pytest.mark.parametrize(("trace", "pool"), recorded("message_window"))
    def test_a_message_window_behaves_as_recorded(self, store, trace, pool):
        replay(trace, pool, store)

    @pytest.mark.parametrize(("trace", "pool"), recorded("token_window"))
    def test_a_token_window_behaves_as_recorded(self, store, trace, pool):
        replay(trace, pool, store)

    @pytest.mark.parametrize(("trace", "pool"), recorded("token_window"))
    def test_a_token_window_with_stored_counts_behaves_as_recorded(self, store, trace, pool):
        replay(trace, pool, store, ADDITIVE_WORDS)
