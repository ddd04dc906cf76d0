"""Recorded runs of LangChain4j's windows, replayed on the store that needs no database."""

import pytest

from chatmemory_django.stores import InMemoryChatMemoryStore
from tests.estimators import ADDITIVE_WORDS
from tests.replay import recorded, replay


def in_process(memory_id: object) -> InMemoryChatMemoryStore:
    return InMemoryChatMemoryStore()


class TestSameAsLangChain4j:
    @pytest.mark.parametrize(("trace", "pool"), recorded("message_window"))
    def test_a_message_window_behaves_as_recorded(self, trace, pool):
        replay(trace, pool, in_process)

    @pytest.mark.parametrize(("trace", "pool"), recorded("token_window"))
    def test_a_token_window_behaves_as_recorded(self, trace, pool):
        replay(trace, pool, in_process)

    @pytest.mark.parametrize(("trace", "pool"), recorded("token_window"))
    def test_a_token_window_with_stored_counts_behaves_as_recorded(self, trace, pool):
        replay(trace, pool, in_process, ADDITIVE_WORDS)
