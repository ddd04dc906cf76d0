import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmemory_django.messages import AiMessage, SystemMessage, UserMessage
from chatmemory_django.tokens import (
    AdditiveTokenCountEstimator,
    OpenAiTokenCountEstimator,
    ScaledTokenCountEstimator,
)

TEXTS = st.lists(st.text(max_size=40), max_size=4)


@given(TEXTS, st.floats(0.5, 3))
def test_counts_are_those_of_the_other_estimator_times_the_factor_and_add_up(texts, factor):
    plain, scaled = OpenAiTokenCountEstimator("gpt-4o"), ScaledTokenCountEstimator("gpt-4o", factor)
    messages = [UserMessage(text) for text in texts]

    for message, text in zip(messages, texts, strict=True):
        count = plain.estimate_token_count_in_message(message)
        assert scaled.estimate_token_count_in_message(message) == math.ceil(count * factor)
        assert scaled.estimate_token_count_in_text(text) >= plain.estimate_token_count_in_text(text) * factor
    each = map(scaled.estimate_token_count_in_message, messages)
    assert scaled.estimate_token_count_in_messages(iter(messages)) == scaled.tokens_per_list + sum(each)


def test_equal_names_count_the_same_and_others_do_not():
    one = ScaledTokenCountEstimator("gpt-4o", 1.15)

    assert isinstance(one, AdditiveTokenCountEstimator)
    assert one.name == ScaledTokenCountEstimator("ft:gpt-4o:org::id", 1.15).name == "o200k_base*1.15"
    assert one.name != ScaledTokenCountEstimator("gpt-4o", 1.2).name
    assert one.name != OpenAiTokenCountEstimator("gpt-4o").name
    assert len(ScaledTokenCountEstimator("o4-mini", 1 / 3).name) <= 64
    assert repr(one) == "ScaledTokenCountEstimator('gpt-4o', 1.15)"
    assert one.estimate_token_count_in_messages([SystemMessage("Be brief."), AiMessage("Yes.")]) > 0


@pytest.mark.parametrize("factor", [0, -1.0, math.inf, math.nan])
def test_a_factor_must_be_above_0(factor):
    with pytest.raises(ValueError, match="factor must be above 0"):
        ScaledTokenCountEstimator("gpt-4o", factor)


@pytest.mark.parametrize("factor", ["1.15", None, True])
def test_a_factor_must_be_a_number(factor):
    with pytest.raises(TypeError, match="factor must be a number"):
        ScaledTokenCountEstimator("gpt-4o", factor)
