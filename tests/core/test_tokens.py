import json
import pickle
import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatmemory_django.messages import (
    AiMessage,
    Audio,
    AudioContent,
    CustomMessage,
    DetailLevel,
    Image,
    ImageContent,
    PdfFile,
    PdfFileContent,
    SystemMessage,
    TextContent,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
    Video,
    VideoContent,
)
from chatmemory_django.tokens import AdditiveTokenCountEstimator
from chatmemory_django.tokens.encodings import get_encoding
from chatmemory_django.tokens.openai import (
    AUDIO_TOKENS,
    PDF_TOKENS,
    PIECE_LENGTH,
    VIDEO_TOKENS,
    OpenAiTokenCountEstimator,
)
from tests.quick import mostly_slow
from tests.vectors import load_vectors, message_from_description

VECTORS = load_vectors("openai_token_counts.json")
SCENARIOS = VECTORS["scenarios"]
MODELS = list(SCENARIOS[0]["counts"])

# LangChain4j prints the Java value of an argument, we count JSON text: "1.0E-7" is two tokens longer than "1e-07".
COUNTED_AS_JSON = {'two requests, arguments {"a":0.1,"b":1E-7}': -2}

GPT_4O = OpenAiTokenCountEstimator("gpt-4o")


def in_text(text: str) -> int:
    return GPT_4O.estimate_token_count_in_text(text)


def in_message(message) -> int:
    return GPT_4O.estimate_token_count_in_message(message)


def in_calls(*arguments: str | None) -> int:
    """Count an AI message that calls the tool "time" with each of *arguments*."""
    return in_message(
        AiMessage(tool_execution_requests=[ToolExecutionRequest("1", "time", each) for each in arguments])
    )


class TestLikeLangChain4j:
    """Token counts are those of LangChain4j."""

    @pytest.mark.parametrize("model_name", MODELS)
    def test_a_list_counts_as_recorded(self, model_name):
        estimator = OpenAiTokenCountEstimator(model_name)

        counts = {
            scenario["name"]: estimator.estimate_token_count_in_messages(
                map(message_from_description, scenario["messages"])
            )
            for scenario in SCENARIOS
        }

        assert counts == {
            name: counts[name] if recorded is None else recorded + COUNTED_AS_JSON.get(name, 0)
            for name, recorded in ((each["name"], each["counts"][model_name]) for each in SCENARIOS)
        }  # LangChain4j fails where nothing is recorded.
        assert min(counts.values()) > 0

    def test_no_two_scenarios_have_one_name(self):
        assert len({scenario["name"] for scenario in SCENARIOS}) == len(SCENARIOS)

    def test_every_exception_is_a_recorded_scenario(self):
        assert COUNTED_AS_JSON.keys() <= {scenario["name"] for scenario in SCENARIOS}

    @pytest.mark.parametrize("fact", VECTORS["text_facts"])
    def test_a_text_counts_as_recorded(self, fact):
        estimator = OpenAiTokenCountEstimator(fact["model"])

        assert estimator.estimate_token_count_in_text(fact["text"]) == fact["expected"]


class TestModelNames:
    @pytest.mark.parametrize("model_name", ["o1", "o9-unknown", "gpt-4.7", "gpt-5-unknown", "gpt-4o", "ft:gpt-4o:me"])
    def test_models_with_o200k_base(self, model_name):
        assert OpenAiTokenCountEstimator(model_name).name.startswith("o200k_base")

    @pytest.mark.parametrize("model_name", ["gpt-4", "gpt-3.5-turbo", "gpt-4-new-name"])
    def test_models_with_cl100k_base(self, model_name):
        assert OpenAiTokenCountEstimator(model_name).name == "cl100k_base"

    @pytest.mark.parametrize(
        ("tuned", "base"),
        [
            ("ft:gpt-4.1-2025-04-14:org::id", "gpt-4.1-2025-04-14"),
            ("ft:gpt-4.1-mini-2025-04-14:org:name:id", "gpt-4.1-mini-2025-04-14"),
            ("ft:o4-mini-2025-04-16:org::id", "o4-mini-2025-04-16"),
            ("ft:gpt-5-mini:x", "gpt-5-mini"),
            ("ft:gpt-3.5-turbo-0125:org::id", "gpt-3.5-turbo-0125"),
            ("ft:davinci-002:org::id", "davinci-002"),
        ],
    )
    def test_a_fine_tuned_model_counts_like_the_one_it_was_made_from(self, tuned, base):
        messages = [UserMessage("Ganz anders gezählt: señor, 東京"), AiMessage("ok")]
        counts = [OpenAiTokenCountEstimator(name).estimate_token_count_in_messages(messages) for name in (tuned, base)]

        assert counts[0] == counts[1]
        assert OpenAiTokenCountEstimator(tuned).name == OpenAiTokenCountEstimator(base).name

    @pytest.mark.parametrize("model_name", ["openai/gpt-4", "ollama/llama3", "openchat", "olmo", "ft:openchat:x"])
    def test_a_name_is_not_taken_for_a_model_of_openai_because_of_its_first_letter(self, model_name):
        with pytest.raises(ValueError, match="knows no encoding for the model"):
            OpenAiTokenCountEstimator(model_name)

    def test_an_unknown_model_is_named_in_the_error(self):
        with pytest.raises(ValueError, match="'my-model'"):
            OpenAiTokenCountEstimator("my-model")

    @pytest.mark.parametrize("model_name", ["", " \t"])
    def test_a_blank_name_is_an_error(self, model_name):
        with pytest.raises(ValueError, match="model_name"):
            OpenAiTokenCountEstimator(model_name)

    @pytest.mark.parametrize("model_name", [None, 4, b"gpt-4"])
    def test_a_name_that_is_not_a_str_is_an_error(self, model_name):
        with pytest.raises(TypeError, match="model_name must be a str"):
            OpenAiTokenCountEstimator(model_name)


class TestEstimatorNames:
    """The name stored with a count identifies how it was counted."""

    @pytest.mark.parametrize("model_name", MODELS)
    def test_the_estimator_is_additive_and_its_name_is_short(self, model_name):
        estimator = OpenAiTokenCountEstimator(model_name)

        assert isinstance(estimator, AdditiveTokenCountEstimator)
        assert 0 < len(estimator.name) <= 24

    @pytest.mark.parametrize(("one", "other"), [("gpt-4o", "gpt-4.1"), ("o1", "o3-mini"), ("gpt-4", "gpt-3.5-turbo")])
    def test_models_that_count_alike_share_a_name(self, one, other):
        assert OpenAiTokenCountEstimator(one).name == OpenAiTokenCountEstimator(other).name

    def test_models_that_count_differently_have_different_names(self):
        image = UserMessage([ImageContent(Image(), DetailLevel.AUTO)])
        samples = (SystemMessage("<|endoftext|> and <|im_start|>"), AiMessage("Hi"), image)
        counts_by_name = {}
        for model_name in (*MODELS, "gpt-5.2", "gpt-5.4", "gpt-5.5", "o4", "ft:gpt-4o-mini:me"):
            estimator = OpenAiTokenCountEstimator(model_name)
            counts = tuple(map(estimator.estimate_token_count_in_message, samples))

            assert counts_by_name.setdefault(estimator.name, counts) == counts

    def test_an_estimator_can_be_pickled_and_its_repr_names_the_model(self):
        copy = pickle.loads(pickle.dumps(GPT_4O))

        assert copy.name == GPT_4O.name
        assert repr(copy) == "OpenAiTokenCountEstimator('gpt-4o')"


class TestMessages:
    def test_an_empty_list_costs_the_overhead_of_a_list(self):
        assert GPT_4O.estimate_token_count_in_messages([]) == GPT_4O.tokens_per_list == 3
        assert OpenAiTokenCountEstimator("o1").tokens_per_list == 2

    def test_an_empty_name_counts_as_a_name(self):
        assert in_message(UserMessage("Hi", name="")) == in_message(UserMessage("Hi")) + 1

    def test_a_name_costs_one_token_plus_its_text(self):
        assert in_message(UserMessage("Hi", name="Klaus")) == in_message(UserMessage("Hi")) + 1 + in_text("Klaus")

    def test_thinking_and_attributes_cost_nothing(self):
        assert in_message(AiMessage("Hi", "Hm.", attributes={"a": 1})) == in_message(AiMessage("Hi"))

    def test_an_empty_ai_message_costs_the_overhead_of_a_message(self):
        assert in_message(AiMessage()) == 4

    def test_o4_adds_two_tokens_to_ai_messages_only(self):
        o4 = OpenAiTokenCountEstimator("o4-mini")

        assert o4.estimate_token_count_in_message(AiMessage("Hi")) == in_message(AiMessage("Hi")) + 2
        assert o4.estimate_token_count_in_message(UserMessage("Hi")) == in_message(UserMessage("Hi"))

    def test_a_tool_result_counts_each_text(self):
        result = ToolExecutionResultMessage("1", "time", [TextContent("23:59"), None, TextContent("o'clock")])

        assert in_message(result) == 4 + in_text("23:59") + in_text("o'clock")

    def test_a_custom_message_counts_the_texts_it_contains(self):
        assert in_message(CustomMessage({"type": "note", "parts": [{"text": "two words"}, 7, None]})) == (
            4 + in_text("note\ntwo words")
        )

    @pytest.mark.parametrize("value", [None, "Hi", {"type": "USER"}])
    def test_an_object_that_is_not_a_message_is_an_error(self, value):
        with pytest.raises(TypeError, match=type(value).__name__):
            in_message(value)


class TestToolArguments:
    """Arguments of several requests are counted per entry."""

    @pytest.mark.parametrize("arguments", [None, "", " \n"])
    def test_blank_arguments_cost_nothing(self, arguments):
        assert in_calls(arguments, "{}") == in_calls("{}", "{}")

    @pytest.mark.parametrize(
        ("arguments", "texts"),
        [
            ('{"city": "München", "days": 3}', ["city", "München", "days", "3"]),
            ('{"deep": {"a": [1, null], "ü": true}}', ["deep", '{"a":[1,null],"ü":true}']),
            ('{"a": 1.50, "b": 123456789012345678901234567890}', ["a", "1.5", "b", "123456789012345678901234567890"]),
            ('{"a": "\\ud83d"}', ["a", "\ud83d"]),
        ],
    )
    def test_an_entry_costs_two_tokens_plus_key_and_value(self, arguments, texts):
        assert in_calls(arguments, "{}") == in_calls("{}", "{}") + len(texts) + sum(map(in_text, texts))

    @pytest.mark.parametrize(
        "arguments", ["[1, 2]", "null", '"text"', '{"city": "Ber', "not JSON", "\ud83d", "[" * 100_000, "9" * 5_000]
    )
    def test_arguments_other_than_a_json_object_count_as_text(self, arguments):
        assert in_calls(arguments, "{}") == in_calls("{}", "{}") + in_text(arguments)

    def test_arguments_of_a_single_request_count_as_text(self):
        assert in_calls('{"a": 1.50}') == 4 + 6 - 1 + 2 * in_text("time") + in_text('{"a": 1.50}')

    def test_a_request_without_a_name_is_counted(self):
        nameless = ToolExecutionRequest("1", None, "{}")

        assert in_message(AiMessage(tool_execution_requests=[nameless])) == 4 + 6 - 1 + in_text("{}")
        assert in_message(AiMessage(tool_execution_requests=[nameless] * 2)) == 4 + 6 + 15 + 2 * 7


class TestFiles:
    """Contents that LangChain4j rejects."""

    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            (ImageContent(Image(url="https://example.org/a.png")), 85),
            (ImageContent(Image(url="https://example.org/a.png"), DetailLevel.HIGH), 765),
            (AudioContent(Audio(url="https://example.org/a.mp3")), AUDIO_TOKENS[1]),
            (AudioContent(Audio(binary_data=b"a" * 160_000)), 100),
            (AudioContent(Audio(base64_data="AAAA" * 53_334)), 100),
            (VideoContent(Video(url="https://example.org/a.mp4")), VIDEO_TOKENS[1]),
            (VideoContent(Video(url="data:video/mp4;base64," + "AAAA" * 53_334)), 160_000 // VIDEO_TOKENS[0]),
            (PdfFileContent(PdfFile(url="https://example.org/a.pdf")), PDF_TOKENS[1]),
            (PdfFileContent(PdfFile(base64_data="cGRm")), 1),
            (AudioContent(), 0),
            (VideoContent(), 0),
            (PdfFileContent(), 0),
            (None, 0),
        ],
    )
    def test_files_cost_by_size_or_a_fixed_number(self, content, expected):
        assert in_message(UserMessage([TextContent("Hi"), content])) - in_message(UserMessage("Hi")) == expected


class TestTexts:
    def test_special_tokens_are_text(self):
        assert in_text("<|endoftext|>") > 1

    @pytest.mark.parametrize("text", ["\ud83d", "lone \ude00 low", "\ud83d\ude00 a pair in two", "\x00"])
    def test_any_str_can_be_counted(self, text):
        assert in_text(text) > 0

    @pytest.mark.parametrize("encoding_name", ["o200k_base", "cl100k_base"])
    def test_a_long_text_with_spaces_is_counted_exactly(self, encoding_name):
        model_name = {"o200k_base": "gpt-4o", "cl100k_base": "gpt-4"}[encoding_name]
        chance = random.Random(7)
        parts = [
            "word",
            "don't",
            " ",
            "  ",
            "\n",
            " \r\n ",
            "\t",
            "!?",
            "/",
            "12345",
            "é",
            "日本",
            "😀",
            "\u00a0",
            "\x1c",
        ]
        text = "".join(chance.choices(parts, k=5 * PIECE_LENGTH))

        count = OpenAiTokenCountEstimator(model_name).estimate_token_count_in_text(text)

        assert count == len(get_encoding(encoding_name).encode_ordinary(text))

    def test_a_long_text_without_spaces_is_counted_almost_exactly(self):
        text = "日本語" * PIECE_LENGTH

        assert in_text(text) == pytest.approx(len(get_encoding("o200k_base").encode_ordinary(text)), abs=2 * 3)

    @pytest.mark.parametrize("character", mostly_slow(["a", " ", "\n", "\u00a0", "!", "日", "😀", "ab c"]))
    def test_a_run_of_two_million_characters_is_counted(self, character):
        text = character * (2 * 10**6 // len(character)) + "x"

        assert in_text(text) > 10_000

    def test_a_long_text_of_any_characters_is_counted(self):
        chance = random.Random(8)
        text = "".join(chr(chance.randrange(0x110000)) for _ in range(300_000))

        assert in_text(text) > 300_000


TEXTS = st.text(st.characters(exclude_categories=()), max_size=200)
REQUESTS = st.builds(
    ToolExecutionRequest,
    id=TEXTS,
    name=TEXTS,
    arguments=TEXTS | st.dictionaries(TEXTS, st.integers() | st.floats() | TEXTS | st.lists(TEXTS)).map(json.dumps),
)
MESSAGES = st.one_of(
    TEXTS.map(lambda text: SystemMessage(f"{text}.")),
    st.builds(UserMessage, TEXTS, name=st.none() | TEXTS),
    st.builds(AiMessage, st.none() | TEXTS, st.none() | TEXTS, st.lists(REQUESTS, max_size=3)),
    st.builds(ToolExecutionResultMessage, TEXTS, TEXTS, TEXTS),
)


class TestAdditivity:
    @given(messages=st.lists(MESSAGES, max_size=10), model_name=st.sampled_from(["gpt-4o", "gpt-4", "o1", "o4-mini"]))
    def test_a_list_costs_its_overhead_plus_the_sum_of_its_messages(self, messages, model_name):
        estimator = OpenAiTokenCountEstimator(model_name)

        counts = [estimator.estimate_token_count_in_message(message) for message in messages]

        assert all(count >= 4 for count in counts)
        assert estimator.estimate_token_count_in_messages(iter(messages)) == estimator.tokens_per_list + sum(counts)

    @given(text=TEXTS)
    def test_only_an_empty_text_costs_nothing(self, text):
        assert (in_text(text) > 0) == bool(text)


def test_importing_the_module_imports_no_library_needed_only_for_counting():
    code = (
        "import sys, chatmemory_django.tokens; "
        "print(sorted({'tiktoken', 'requests', 'imagesize', 'django'} & sys.modules.keys()))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
