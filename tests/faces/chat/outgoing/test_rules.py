"""Each row of the table of what vendors accept."""

import json
from dataclasses import replace
from typing import Any

import pytest

from chatmemory_django.chat.model import InvalidRequestError
from chatmemory_django.chat.openai import OpenAiChatModel
from chatmemory_django.chat.openai.requests import to_messages
from chatmemory_django.chat.outgoing import (
    ANTHROPIC,
    BEDROCK,
    DEEPSEEK,
    GEMINI,
    LLAMA_3,
    MISTRAL,
    MOONSHOT,
    OPEN_MODEL,
    OPENAI,
    OPENAI_RESPONSES,
    STRICTEST,
    WITHOUT_TOOLS,
    Changed,
    Difference,
    Outgoing,
    Rules,
    for_vendor,
    rules_of,
)
from chatmemory_django.chat.outgoing.fitting import BEGINNING, GO_ON, NO_ANSWER, REASONING, named, reasoning_of
from chatmemory_django.core.shown import VENDOR_ATTRIBUTE
from chatmemory_django.core.tool_calls import UNKNOWN
from chatmemory_django.messages import (
    AiMessage,
    Audio,
    AudioContent,
    ChatMessage,
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

BRIEF, KIND = SystemMessage("Be brief."), SystemMessage("Be kind.")
Q, A, NOW = UserMessage("1 + 1?"), AiMessage("2."), UserMessage("And now?")
PNG = ImageContent(Image(base64_data="iVBORw0KGgo=", mime_type="image/png"))
WAV = AudioContent(Audio(base64_data="UklGRg==", mime_type="audio/wav"))
PDF = PdfFileContent(PdfFile(base64_data="JVBERi0=", mime_type="application/pdf"))
MP4 = VideoContent(Video(url="https://example.com/films/cat.mp4?signature=secret", mime_type="video/mp4"))

ALL = {
    "OpenAI": OPENAI,
    "responses": OPENAI_RESPONSES,
    "Anthropic": ANTHROPIC,
    "Gemini": GEMINI,
    "Bedrock": BEDROCK,
    "Mistral": MISTRAL,
    "DeepSeek": DEEPSEEK,
    "Moonshot": MOONSHOT,
    "open": OPEN_MODEL,
    "strictest": STRICTEST,
}


def all_but(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("rules", [ALL[name] for name in ALL if name not in names])


def those(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("rules", [ALL[name] for name in names])


def fit(rules: Rules, *messages: ChatMessage, **options: int) -> Outgoing:
    return for_vendor(list(enumerate(messages, start=1)), rules, **options)


def call(
    call_id: str | None = "abcdefghi", tool: str | None = "add", arguments: str | None = "{}"
) -> ToolExecutionRequest:
    return ToolExecutionRequest(call_id, tool, arguments)


def calling(*calls: ToolExecutionRequest, text: str | None = None) -> AiMessage:
    return AiMessage(text, None, calls)


def result(
    call_id: str | None = "abcdefghi", tool: str | None = "add", contents: Any = "2"
) -> ToolExecutionResultMessage:
    return ToolExecutionResultMessage(call_id, tool, contents)


class TestSystem:
    """Anywhere at OpenAI, DeepSeek and Moonshot; a field or the beginning elsewhere; one for open models."""

    @those("OpenAI", "responses", "DeepSeek", "Moonshot")
    def test_system_messages_may_be_anywhere(self, rules):
        assert fit(rules, BRIEF, Q, A, KIND, NOW) == Outgoing([BRIEF, Q, A, KIND, NOW], [1, 2, 3, 4, 5])

    @those("Anthropic", "Gemini", "Bedrock", "Mistral")
    def test_system_messages_come_first(self, rules):
        made = fit(rules, BRIEF, Q, A, KIND, NOW)

        assert made.messages == [BRIEF, KIND, Q, A, NOW]
        assert made.sequences == [1, 4, 2, 3, 5]
        assert made.changes == (Changed(4, Difference.MOVED),)

    @those("open", "strictest")
    def test_there_is_one_system_message(self, rules):
        made = fit(rules, BRIEF, KIND, Q)

        assert made.messages == [SystemMessage("Be brief.\n\nBe kind."), Q]
        assert made.changes == (Changed(2, Difference.MERGED),)


class TestFirstAndLast:
    @those("Anthropic", "Gemini", "Bedrock", "Mistral", "open", "strictest")
    def test_the_first_message_is_a_users(self, rules):
        made = fit(rules, BRIEF, A, NOW)

        assert made.messages == [BRIEF, BEGINNING, A, NOW]
        assert made.changes == (Changed(2, Difference.INSERTED),)

    @those("OpenAI", "responses", "DeepSeek", "Moonshot")
    def test_the_first_message_may_be_anyones(self, rules):
        assert fit(rules, BRIEF, A, NOW).changes == ()

    @those("Anthropic", "Gemini", "Bedrock", "Mistral", "strictest")
    def test_the_last_message_is_not_the_assistants(self, rules):
        made = fit(rules, Q, A)

        assert made.messages == [Q, A, GO_ON]
        assert made.changes == (Changed(2, Difference.INSERTED),)

    @those("OpenAI", "responses", "DeepSeek", "Moonshot", "open")
    def test_the_last_message_may_be_anyones(self, rules):
        assert fit(rules, Q, A).messages == [Q, A]

    @all_but()
    def test_the_last_message_may_be_a_result(self, rules):
        assert fit(rules, Q, calling(call()), result()).messages[-1] == result()


class TestRoles:
    @those("Gemini", "Bedrock", "open", "strictest")
    def test_roles_alternate(self, rules):
        made = fit(rules, Q, NOW, A, calling(call(), text="Hm."), result())

        assert made.messages == [UserMessage("1 + 1?\n\nAnd now?"), calling(call(), text="2.\n\nHm."), result()]
        assert made.changes == (Changed(2, Difference.MERGED), Changed(4, Difference.MERGED))

    @those("OpenAI", "responses", "Anthropic", "Mistral", "DeepSeek", "Moonshot")
    def test_roles_are_free(self, rules):
        assert fit(rules, Q, NOW, A, A, NOW).changes == ()

    @those("Bedrock")
    def test_an_answer_with_signatures_is_not_merged(self, rules):
        signed = AiMessage("Hm.", "…", [call()], {VENDOR_ATTRIBUTE: {"parts": []}})

        assert fit(rules, Q, A, signed, result()).messages == [Q, A, GO_ON, signed, result()]

    @those("Mistral", "open", "strictest")
    def test_no_user_is_directly_behind_a_tool(self, rules):
        made = fit(rules, Q, calling(call()), result(), NOW)

        assert made.messages[-2:] == [NO_ANSWER, NOW]
        assert made.changes == (Changed(4, Difference.INSERTED),)

    @those("OpenAI", "responses", "Anthropic", "Gemini", "Bedrock", "DeepSeek", "Moonshot")
    def test_a_user_may_be_behind_a_tool(self, rules):
        assert fit(rules, Q, calling(call()), result(), NOW).changes == ()


class TestBlankText:
    @those("Anthropic", "Gemini", "Bedrock", "strictest")
    @pytest.mark.parametrize("blank", ["", "\n\n", "\xa0"])
    def test_no_text_is_blank(self, rules, blank):
        both = UserMessage([TextContent(blank), TextContent("Hi.")])

        made = fit(rules, UserMessage(blank), calling(call(), text=blank), result(contents=blank), A, both)

        assert made.messages == [
            UserMessage("[no text]"),
            calling(call()),
            result(contents="[no text]"),
            A,
            UserMessage("Hi."),
        ]
        assert made.changes == tuple(Changed(sequence, Difference.BLANK) for sequence in (1, 2, 3, 5))

    @those("Anthropic", "Gemini", "Bedrock", "strictest")
    def test_a_blank_answer_is_left_out(self, rules):
        made = fit(rules, UserMessage([TextContent("1 + 1?"), PNG]), AiMessage("\n\n"), A, NOW)

        assert [type(each) for each in made.messages] == [UserMessage, AiMessage, UserMessage]
        assert made.changes == (Changed(2, Difference.LEFT_OUT),)

    @those("OpenAI", "responses", "Mistral", "DeepSeek", "Moonshot", "open")
    def test_texts_may_be_blank(self, rules):
        assert fit(rules, UserMessage(" "), AiMessage("\n\n"), NOW).changes == ()

    @all_but()
    def test_an_answer_has_content_or_calls(self, rules):
        assert AiMessage("") not in fit(rules, Q, AiMessage(""), NOW).messages

    def test_templates_of_open_models_are_given_no_null(self):
        assert to_messages([Q, calling(call())], OPEN_MODEL)[1]["content"] == ""
        assert "content" not in to_messages([Q, calling(call())], OPENAI)[1]


class TestIds:
    @pytest.mark.parametrize(
        ("rules", "fits", "unfit"),
        [
            (OPENAI, "functions.add:0", "a" * 41),
            (OPENAI_RESPONSES, "a" * 64, "a" * 65),
            (ANTHROPIC, "a" * 80, "functions.add:0"),
            (GEMINI, "functions.add:0", ""),
            (BEDROCK, "toolu_01-A", "functions.add:0"),
            (MISTRAL, "abcdefghi", "call_0"),
            (DEEPSEEK, "functions.add:0", ""),
            (MOONSHOT, "functions.add:0", None),
            (OPEN_MODEL, "functions.add:0", None),
            (STRICTEST, "toolu_01-A", "functions.add:0"),
        ],
    )
    def test_an_id_that_fits_stays_and_another_is_made_and_its_result_follows(self, rules, fits, unfit):
        made = fit(rules, Q, calling(call(fits), call(unfit)), result(fits), result(unfit))

        first, second = made.messages[1].tool_execution_requests
        assert first.id == fits
        assert len(second.id) == 9
        assert second.id.isalnum()
        assert [each.id for each in made.messages[2:]] == [first.id, second.id]
        assert made.changes == (Changed(2, Difference.CALL_ID), Changed(4, Difference.CALL_ID))

    @all_but()
    def test_ids_are_unique_and_the_first_call_keeps_its_own(self, rules):
        rounds = [calling(call()), result(), calling(call()), result(), calling(call(), call()), result(), result()]

        made = fit(rules, Q, *rounds)

        first, *others = (
            each.id for message in made.messages for each in getattr(message, "tool_execution_requests", ())
        )
        assert first == "abcdefghi"
        assert len({first, *others}) == 4
        assert [each.id for each in made.messages if isinstance(each, ToolExecutionResultMessage)] == [first, *others]
        assert fit(rules, Q, *rounds[:4]).messages == made.messages[:5]  # also before the later ones have come


class TestNames:
    @pytest.mark.parametrize(
        ("rules", "name", "sent"),
        [
            (OPENAI, "shop.find it", "shop_find_it"),
            (OPENAI_RESPONSES, "shop.find", "shop_find"),
            (ANTHROPIC, "n" * 128, "n" * 128),
            (ANTHROPIC, "shop.find", "shop_find"),
            (GEMINI, "shop.find", "shop.find"),
            (GEMINI, "größer", "gr__er"),
            (BEDROCK, "n" * 65, "n" * 64),
            (MISTRAL, "shop.find", "shop_find"),
            (DEEPSEEK, "shop.find", "shop_find"),
            (MOONSHOT, "shop.find", "shop_find"),
            (OPEN_MODEL, "shop.find it", "shop.find it"),
            (STRICTEST, None, "tool"),
        ],
    )
    def test_the_name_of_a_tool_and_of_its_result(self, rules, name, sent):
        made = fit(rules, Q, calling(call(tool=name)), result(tool=name))

        assert made.messages[1].tool_execution_requests[0].name == made.messages[2].tool_name == sent
        assert {change for _, change in made.changes} == ({Difference.NAME} if name != sent else set())

    @all_but()
    @pytest.mark.parametrize(("name", "sent"), [("Ann Lee", "Ann_Lee"), ("<b\\|/>", "_b____"), ("Ann", "Ann")])
    def test_the_name_of_a_speaker(self, rules, name, sent):
        assert fit(rules, UserMessage("Hi.", name)).messages == [
            UserMessage("Hi.", sent.replace(">", "_") if ">" in sent else sent)
        ]


class TestArguments:
    @those("Anthropic", "Gemini", "Bedrock", "Mistral", "open", "strictest")
    @pytest.mark.parametrize("broken", ['{"a": ', "[1]", "NaN", '{"a": NaN}', "a text"])
    def test_arguments_are_a_json_object_that_keeps_the_text(self, rules, broken):
        made = fit(rules, Q, calling(call(arguments=broken)), result())

        assert json.loads(made.messages[1].tool_execution_requests[0].arguments) == {"text": broken}
        assert made.changes == (Changed(2, Difference.ARGUMENTS),)

    @those("OpenAI", "responses", "DeepSeek", "Moonshot")
    def test_arguments_may_be_any_text(self, rules):
        assert fit(rules, Q, calling(call(arguments='{"a": ')), result()).changes == ()

    @all_but()
    def test_arguments_are_never_missing(self, rules):
        assert fit(rules, Q, calling(call(arguments=None)), result()).messages[1] == calling(call())


@all_but()
class TestResults:
    def test_they_are_directly_behind_their_calls(self, rules):
        made = fit(
            rules, Q, calling(call("aaaaaaaaa"), call("bbbbbbbbb")), NOW, result("bbbbbbbbb"), result("aaaaaaaaa")
        )

        assert made.messages[1:4] == [
            calling(call("aaaaaaaaa"), call("bbbbbbbbb")),
            result("aaaaaaaaa"),
            result("bbbbbbbbb"),
        ]
        assert made.messages[-1] == NOW
        assert {Changed(4, Difference.MOVED), Changed(5, Difference.MOVED)} <= set(made.changes)

    def test_there_is_one_for_each_call_and_no_other(self, rules):
        made = fit(rules, Q, result("zzzzzzzzz"), calling(call()), A, NOW)

        assert made.messages[1:3] == [calling(call()), ToolExecutionResultMessage("abcdefghi", "add", UNKNOWN, True)]
        assert {Changed(2, Difference.LEFT_OUT), Changed(3, Difference.INSERTED)} == set(made.changes)


class TestCalls:
    def test_llama_3_calls_one_tool_at_a_time(self):
        first, second = call("a", arguments='{"a": 1}'), call("b")

        made = fit(LLAMA_3, Q, calling(first, second, text="Hm."), result("a"), result("b", contents="3"), A, NOW)

        assert made.messages == [
            Q,
            calling(first, text="Hm."),
            result("a"),
            calling(second),
            result("b", contents="3"),
            A,
            NOW,
        ]
        assert made.sequences == [1, 2, 3, 2, 4, 5, 6]
        assert made.changes == (Changed(2, Difference.SPLIT),)
        assert fit(LLAMA_3, *made.messages).changes == ()

    def test_calls_and_results_are_texts_where_a_template_knows_no_tools(self):
        made = fit(WITHOUT_TOOLS, Q, calling(call("a"), call("b"), text="Hm."), result("a"), result("b"), NOW)

        assert made.messages == [
            Q,
            AiMessage("Hm.\n\n[Call of the tool add: {}]\n\n[Call of the tool add: {}]"),
            UserMessage("[Result of the tool add:]\n2\n\n[Result of the tool add:]\n2\n\nAnd now?"),
        ]
        assert {Changed(2, Difference.TEXT), Changed(3, Difference.TEXT), Changed(4, Difference.TEXT)} <= set(
            made.changes
        )

    def test_a_file_of_a_result_is_beside_its_text(self):
        made = fit(WITHOUT_TOOLS, Q, calling(call()), result(contents=[PNG]), begun=1)

        assert made.messages[2] == UserMessage([TextContent("[Result of the tool add:]"), PNG])

    @all_but()
    def test_others_call_many(self, rules):
        both = calling(call("aaaaaaaaa"), call("bbbbbbbbb"))

        assert fit(rules, Q, both, result("aaaaaaaaa"), result("bbbbbbbbb")).messages[1] == both


class TestToolsThatAreGone:
    def test_bedrock_is_given_those_of_the_history(self):
        assert fit(BEDROCK, Q, calling(call(), call("b", "find")), result(), result("b", "find")).tools == (
            "add",
            "find",
        )

    @all_but("Bedrock")
    def test_others_are_given_none(self, rules):
        assert fit(rules, Q, calling(call()), result()).tools == ()


class TestThinking:
    @those("DeepSeek", "Moonshot")
    def test_reasoning_content_goes_back_with_calls(self, rules):
        own = AiMessage(None, "I add.", [call()])
        foreign = AiMessage(None, "Hm.", [call()], {VENDOR_ATTRIBUTE: {}})

        sent = to_messages([Q, own, result(), AiMessage("2.", "Done."), NOW, foreign, result()], rules)

        assert [each.get("reasoning_content") for each in sent] == [None, "I add.", None, None, None, REASONING, None]

    def test_reasoning_content_goes_back_to_who_has_thought_it(self):
        thought = AiMessage(None, "I add.", [call()])

        for vendor, others in (DEEPSEEK, MOONSHOT), (MOONSHOT, DEEPSEEK), (replace(OPEN_MODEL, vendor="a"), DEEPSEEK):
            assert reasoning_of(named(thought, vendor), vendor) == "I add."
            assert reasoning_of(named(thought, vendor), others) == REASONING
        assert named(AiMessage("2.", "I add."), DEEPSEEK).attributes == {}

    def test_calls_of_the_vendors_own_tools_go_back_without_a_text(self):
        parts = [{"part_kind": "builtin-tool-call", "tool_name": "web_search", "tool_call_id": "1"}]
        searched = AiMessage(None, None, (), {VENDOR_ATTRIBUTE: {"provider_name": "google-gla", "parts": parts}})

        def sent(rules: Rules) -> bool:
            return searched in fit(rules, Q, searched, NOW).messages

        assert sent(replace(GEMINI, vendor="google"))
        assert not sent(replace(ANTHROPIC, vendor="anthropic"))
        assert not sent(replace(GEMINI, vendor="google", returns_responses=False))
        assert fit(replace(ANTHROPIC, vendor="anthropic"), Q, searched, NOW).changes == (
            Changed(2, Difference.LEFT_OUT),
        )

    @all_but("DeepSeek", "Moonshot")
    def test_others_are_sent_none(self, rules):
        assert "reasoning_content" not in to_messages([Q, AiMessage(None, "I add.", [call()]), result()], rules)[1]

    @those("responses", "strictest")
    def test_what_a_vendor_sent_goes_back_once_and_with_the_first_of_equal_answers(self, rules):
        signed = AiMessage("2.", "Hm.", (), {VENDOR_ATTRIBUTE: {"provider_response_id": "resp_1"}, "own": 1})

        made = fit(rules, Q, signed, Q, signed, NOW)

        assert made.messages == [Q, signed, Q, AiMessage("2.", "Hm.", (), {"own": 1}), NOW]
        assert made.changes == (Changed(4, Difference.THINKING),)

    @those("OpenAI", "Anthropic", "Gemini", "Bedrock")
    def test_it_may_go_back_twice(self, rules):
        signed = AiMessage("2.", "Hm.", (), {VENDOR_ATTRIBUTE: {"provider_response_id": "resp_1"}})

        assert fit(rules, Q, signed, Q, signed, NOW).changes == ()

    @all_but()
    def test_a_thought_is_not_sent_alone(self, rules):
        alone = AiMessage(None, "Hm.", (), {VENDOR_ATTRIBUTE: {"parts": []}})

        assert alone not in fit(rules, Q, alone, NOW).messages

    def test_it_counts_where_it_is_sent(self):
        thinking = AiMessage(None, "I add.", [call()])

        assert OpenAiChatModel("deepseek-chat").returns_thinking(thinking) is False  # behind OpenAI's address
        assert OpenAiChatModel("any", rules=DEEPSEEK).returns_thinking(thinking) is True
        assert OpenAiChatModel("any", rules=DEEPSEEK).returns_thinking(AiMessage("2.", "Done.")) is False


class TestFiles:
    @pytest.mark.parametrize(
        ("rules", "taken"),
        [
            (OPENAI, [PNG, WAV, PDF]),
            (OPENAI_RESPONSES, [PNG, PDF]),
            (ANTHROPIC, [PNG, PDF]),
            (GEMINI, [PNG, WAV, PDF, MP4]),
            (BEDROCK, [PNG, PDF]),
            (MISTRAL, [PNG]),
            (DEEPSEEK, []),
            (MOONSHOT, []),
            (OPEN_MODEL, [PNG, WAV, PDF, MP4]),
            (STRICTEST, [PNG, WAV, PDF, MP4]),
        ],
    )
    def test_kinds_that_the_model_does_not_take_become_notes(self, rules, taken):
        notes = {
            PNG: "[image (image/png, 8 bytes) left out]",
            WAV: "[audio file (audio/wav, 4 bytes) left out]",
            PDF: "[PDF file (application/pdf, 5 bytes) left out]",
            MP4: "[video (cat.mp4, video/mp4) left out]",
        }
        text = TextContent("See:")

        made = fit(rules, UserMessage([text, *notes]), A, NOW)

        sent = [each if each in taken else TextContent(note) for each, note in notes.items()]
        assert made.messages[0] == UserMessage([text, *sent])
        assert made.changes == ((Changed(1, Difference.FILE),) if len(taken) < 4 else ())
        assert made.unsupported is None

    @those("DeepSeek", "Moonshot")
    def test_those_of_the_question_are_named(self, rules):
        assert fit(rules, UserMessage([PNG]), A, UserMessage([WAV, PDF]), begun=3).unsupported == (
            "audio file (audio/wav, 4 bytes)"
        )
        assert fit(rules, Q, calling(call()), result(contents=[PNG]), begun=1).unsupported is None

    @those("Bedrock")
    def test_a_pdf_of_a_result_becomes_a_note_and_an_image_stays(self, rules):
        made = fit(rules, Q, calling(call()), result(contents=[PNG, PDF]))

        assert made.messages[2].contents == (PNG, TextContent("[PDF file (application/pdf, 5 bytes) left out]"))
        assert made.changes == (Changed(3, Difference.FILE),)

    def test_a_request_has_at_most_100_images_at_claude(self):
        many = [UserMessage([TextContent("?"), *[PNG] * 20]) for _ in range(6)]

        made = fit(ANTHROPIC, *many)

        assert sum(each is PNG for message in made.messages for each in message.contents) == 100
        assert made.messages[1:] == many[1:]

    @those("Bedrock", "open", "strictest")
    def test_documents_have_a_text_beside_them(self, rules):
        assert fit(rules, UserMessage([PDF])).messages == [UserMessage([PDF, TextContent("[a PDF file]")])]

    @pytest.mark.parametrize(
        "content",
        [
            VideoContent(Video(base64_data="AAAA")),
            AudioContent(Audio(base64_data="T2dnUw==", mime_type="audio/ogg")),
            AudioContent(Audio(url="https://example.com/a.wav")),
            PdfFileContent(PdfFile(url="https://example.com/a.pdf")),
            PdfFileContent(PdfFile(base64_data="QUJD", mime_type="text/plain")),
            ImageContent(Image()),
            AudioContent(),
        ],
    )
    def test_what_chat_completions_cannot_express_becomes_a_note(self, content):
        model = OpenAiChatModel("any", rules=GEMINI)

        [sent] = to_messages(fit(model.rules, UserMessage([content])).messages, model.rules)

        assert sent["content"].endswith(" left out]")
        with pytest.raises(InvalidRequestError):
            to_messages([UserMessage([content])])

    @all_but("DeepSeek", "Moonshot", "open", "strictest")
    def test_an_image_of_a_type_that_the_model_does_not_take_becomes_a_note(self, rules):
        tiff = ImageContent(Image(base64_data="QUJD", mime_type="image/tiff"))

        made = fit(rules, UserMessage([TextContent("?"), tiff, PNG]), A, NOW)

        assert made.messages[0].contents == (
            TextContent("?"),
            TextContent("[image (image/tiff, 3 bytes) left out]"),
            PNG,
        )

    def test_an_image_without_a_type_is_given_the_one_that_its_bytes_show(self):
        [sent] = to_messages(fit(OPENAI, UserMessage([ImageContent(Image(base64_data="iVBORw0KGgo="))])).messages)

        assert sent["content"][0]["image_url"]["url"].startswith("data:image/png;base64,")

    def test_files_of_results_are_not_directly_behind_a_tool_for_who_does_not_take_that(self):
        sent = to_messages([Q, calling(call()), result(contents=[PNG])], MISTRAL)

        assert [each["role"] for each in sent] == ["user", "assistant", "tool", "assistant", "user"]


class TestProfiles:
    @pytest.mark.parametrize(
        ("name", "url", "rules"),
        [
            ("gpt-5.2", "https://api.openai.com/v1", OPENAI),
            ("gpt-4o", "https://my.openai.azure.com/openai", OPENAI),
            ("gpt-4o", "http://proxy.example", OPENAI),
            ("claude-sonnet-5-5", "http://proxy.example", ANTHROPIC),
            ("gemini-3.8-flash", "https://generativelanguage.googleapis.com/v1beta/openai/", GEMINI),
            ("gemini-3.8-flash", "http://proxy.example", GEMINI),
            ("any", "https://bedrock-runtime.us-east-1.amazonaws.com", BEDROCK),
            ("mistral-large-latest", "https://api.mistral.ai/v1", MISTRAL),
            ("mistralai/Ministral-8B", "http://localhost:8000/v1", MISTRAL),
            ("deepseek-chat", "https://api.deepseek.com", DEEPSEEK),
            ("deepseek-ai/DeepSeek-R1", "http://localhost:8000/v1", OPEN_MODEL),
            ("kimi-k2.5", "https://api.moonshot.ai/v1", MOONSHOT),
            ("Qwen/Qwen3.8-9B", "http://localhost:8000/v1", OPEN_MODEL),
            ("gemma-3", "http://localhost:8000/v1", WITHOUT_TOOLS),
            ("google/gemma-4-31B-it", "http://localhost:8000/v1", OPEN_MODEL),
            ("CohereLabs/aya-expanse-32b", "http://localhost:8000/v1", WITHOUT_TOOLS),
            ("llama3.1:8b", "http://localhost:11434/v1", LLAMA_3),
            ("gpt-oss:20b", "http://localhost:11434/v1", OPEN_MODEL),
            ("our-model", "http://localhost:8000/v1", STRICTEST),
        ],
    )
    def test_they_are_found_by_the_address_and_else_by_the_name(self, name, url, rules):
        assert rules_of(name, url) == rules

    def test_an_argument_overrides_them(self):
        assert OpenAiChatModel("gpt-4o", rules=MISTRAL).rules.call_id == MISTRAL.call_id
        assert OpenAiChatModel("gpt-4o").rules.call_id == OPENAI.call_id

    def test_the_address_may_be_in_the_environment(self, monkeypatch):
        monkeypatch.setenv("OPENAI_BASE_URL", "https://api.mistral.ai/v1")

        assert OpenAiChatModel("any").rules.call_id == MISTRAL.call_id
