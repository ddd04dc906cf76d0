"""Real conversations, summarized as they grow."""

from contextlib import suppress
from itertools import islice

import pytest

from chatmemory_django.memory import SummarizingChatMemory
from chatmemory_django.models import Conversation
from chatmemory_django.stores.django import DjangoChatMemoryStore
from tests.estimators import ADDITIVE_WORDS

pytestmark = pytest.mark.django_db


def test_each_of_10_000_real_messages_is_covered_once_within_the_limit():
    pytest.importorskip("chitchat_dataset")
    from example_project.corpus import chitchat

    numbered = list(islice((message for talk in chitchat() for message in talk.messages), 10_000))
    covered, calls, counted, limit = [], [], 0, 400

    def summarize(previous, messages):
        calls.append(len(messages))
        if len(calls) % 3 == 0:
            raise TimeoutError
        assert previous == (f"so far {len(covered)}" if covered else None)
        covered.extend(messages)
        return f"so far {len(covered)}"

    store = DjangoChatMemoryStore()
    memory = SummarizingChatMemory(
        id="c",
        store=store,
        max_tokens=limit,
        token_count_estimator=ADDITIVE_WORDS,
        summarize=summarize,
        summary_tokens=10,
        after_tokens=limit // 2,
        summarize_after_add=False,
    )
    while counted < len(numbered):
        size = 1 + counted % 17
        memory.add(*numbered[counted : counted + size])
        counted += size
        with suppress(TimeoutError):
            memory.summarize()
        assert ADDITIVE_WORDS.estimate_token_count_in_messages(store.get_messages("c")) <= limit
    pending = True
    while pending:
        with suppress(TimeoutError):
            pending = memory.summarize()

    conversation = Conversation.objects.get()
    through = conversation.messages.get(sequence=conversation.summary_sequence).metadata["through"]
    assert len(calls) > 100
    assert covered == numbered[: len(covered)]
    assert conversation.history().filter(sequence__lte=through).count() == len(covered)
    assert conversation.history().count() == len(numbered)
    left = conversation.evicted().filter(sequence__gt=through)
    assert sum(row.token_count for row in left) < limit // 2
