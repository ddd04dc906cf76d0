"""JSON is written and read as LangChain4j writes it; anything else is rejected with its position and reason."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields

from chatmemory_django.codec import (
    MAX_REASON,
    message_from_json,
    message_to_json,
    messages_from_json,
    messages_to_json,
)
from chatmemory_django.messages import (
    AiMessage,
    Audio,
    AudioContent,
    CustomMessage,
    DetailLevel,
    Image,
    ImageContent,
    SystemMessage,
    TextContent,
    ToolExecutionRequest,
    ToolExecutionResultMessage,
    UserMessage,
)
from chatmemory_django.models.columns import to_message
from tests.strategies import messages, texts
from tests.vectors import load_vectors, message_from_description

VECTORS = load_vectors("codec.json")
MESSAGES = {case["name"]: case for case in VECTORS["messages"]}
LISTS = {case["name"]: case for case in VECTORS["lists"]}
PRIVATE = "what no one else may read"


def canonical(text: str) -> str:
    """Return *text* without optional fields; 1 and 1.0 differ, as do 0.0 and -0.0, but not 1e1 and 10.0."""

    def without_empty(item: dict | None) -> dict | None:
        if item is None:
            return None
        optional = ("attributes", "toolExecutionRequests") if item["type"] != "CUSTOM" else ()
        return {key: value for key, value in item.items() if value not in ({}, []) or key not in optional}

    parsed = json.loads(text)
    parsed = list(map(without_empty, parsed)) if isinstance(parsed, list) else without_empty(parsed)
    return json.dumps(parsed, sort_keys=True)


def cases(recorded: dict[str, dict], *, but: str = "") -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", [pytest.param(recorded[name], id=name) for name in recorded if name != but])


class TestLikeLangChain4j:
    """Every recorded message and list."""

    @cases(MESSAGES)
    def test_a_message_is_written_as_recorded(self, case):
        message = message_from_description(case["message"])

        written = message_to_json(message)

        assert canonical(written) == canonical(case["json"])

    @cases(MESSAGES, but="user_empty_name")
    def test_a_recorded_message_is_read(self, case):
        assert case["round_trip_equal"]
        assert message_from_json(case["json"]) == message_from_description(case["message"])

    @cases(MESSAGES, but="user_empty_name")
    def test_a_written_message_is_read_back(self, case):
        message = message_from_description(case["message"])

        assert message_from_json(message_to_json(message)) == message

    def test_an_empty_name_is_not_written_and_reads_as_none(self):
        case = MESSAGES["user_empty_name"]
        message = message_from_description(case["message"])

        read = message_from_json(message_to_json(message))

        assert message.name == ""
        assert read == message_from_description(case["round_trip_message"])
        assert read.name is None

    @pytest.mark.parametrize(
        "case", [pytest.param(LISTS[name], id=name) for name in LISTS if name not in {"null_list", "null_element"}]
    )
    def test_a_list_is_written_and_read_as_recorded(self, case):
        expected = list(map(message_from_description, case["messages"]))

        assert canonical(messages_to_json(expected)) == canonical(case["json"])
        assert messages_from_json(case["json"]) == expected
        assert messages_from_json(messages_to_json(expected)) == expected


class TestUnlikeLangChain4j:
    """In Python, None is neither a message nor a list."""

    def test_none_in_a_list_is_not_written(self):
        with pytest.raises(TypeError, match=r"^messages\[1\] must be a message, not NoneType\.$"):
            messages_to_json([UserMessage("a"), None, AiMessage("b")])

    def test_null_in_a_list_is_not_read(self):
        with pytest.raises(ValueError, match=r"^\$\[1\]: Expected `object`, got `null`\.$"):
            messages_from_json(LISTS["null_element"]["json"])

    def test_a_null_list_reads_as_an_empty_list(self):
        assert messages_from_json(LISTS["null_list"]["json"]) == []
        assert messages_from_json(None) == []  # a store that has no value yet

    def test_none_is_not_written_as_a_list(self):
        with pytest.raises(TypeError):
            messages_to_json(None)

    @pytest.mark.parametrize("value", [None, PRIVATE, [SystemMessage("a")], TextContent("a")], ids=["a", "b", "c", "d"])
    def test_only_messages_are_written_as_messages(self, value):
        with pytest.raises(TypeError, match=rf"^message must be a message, not {type(value).__name__}\.$"):
            message_to_json(value)


class TestForms:
    def test_none_and_empty_fields_are_omitted(self):
        assert json.loads(message_to_json(UserMessage("Hi"))) == {
            "type": "USER",
            "contents": [{"type": "TEXT", "text": "Hi"}],
        }
        assert json.loads(message_to_json(AiMessage())) == {"type": "AI"}
        assert json.loads(message_to_json(AiMessage(tool_execution_requests=[ToolExecutionRequest(id="1")]))) == {
            "type": "AI",
            "toolExecutionRequests": [{"id": "1"}],
        }

    def test_keys_are_camel_case(self):
        audio = Audio(base64_data="AA", mime_type="audio/wav", binary_data=b"\0\xff")
        picture = ImageContent(Image(revised_prompt="a cat"), DetailLevel.ULTRA_HIGH)
        message = ToolExecutionResultMessage("1", "paint", [picture, AudioContent(audio)], is_error=False)

        assert json.loads(message_to_json(message)) == {
            "type": "TOOL_EXECUTION_RESULT",
            "id": "1",
            "toolName": "paint",
            "contents": [
                {"type": "IMAGE", "image": {"revisedPrompt": "a cat"}, "detailLevel": "ULTRA_HIGH"},
                {
                    "type": "AUDIO",
                    "audio": {"base64Data": "AA", "mimeType": "audio/wav", "binaryData": "AP8="},
                },
            ],
            "isError": False,
        }

    @pytest.mark.parametrize(
        "json_type", [str, str.encode, lambda text: bytearray(text.encode())], ids=["str", "bytes", "bytearray"]
    )
    def test_json_is_read_from_str_and_bytes(self, json_type):
        assert message_from_json(json_type('{"type":"SYSTEM","text":"é😀"}')) == SystemMessage("é😀")
        assert messages_from_json(json_type('[{"type":"SYSTEM","text":"é"}]')) == [SystemMessage("é")]

    def test_keys_may_come_in_any_order_and_unknown_keys_are_ignored(self):
        assert message_from_json('{"text":"a","later":{"x":[1]},"type":"SYSTEM"}') == SystemMessage("a")

    def test_an_image_without_a_detail_level_has_low_detail(self):
        read = message_from_json('{"type":"USER","contents":[{"type":"IMAGE","image":{"url":"a"}}]}')

        assert read == UserMessage([ImageContent(Image(url="a"), DetailLevel.LOW)])

    @pytest.mark.parametrize("number", [2**63, -(2**64), 10**40, 1e308, 5e-324, -0.0, 1.0], ids=repr)
    def test_numbers_keep_their_value_and_type(self, number):
        read = message_from_json(message_to_json(CustomMessage({"n": number})))

        assert repr(read.attributes["n"]) == repr(number)

    def test_any_iterable_of_messages_is_written(self):
        assert messages_to_json(iter([SystemMessage("a")])) == messages_to_json((SystemMessage("a"),))


class TestLegacyToolResults:
    """Before 1.13, LangChain4j wrote the text of a tool result as "text"."""

    LEGACY = '{"type":"TOOL_EXECUTION_RESULT","id":"1","toolName":"weather","text":"sunny"}'
    EXPECTED = ToolExecutionResultMessage("1", "weather", "sunny")

    def test_a_legacy_tool_result_is_read(self):
        assert message_from_json(self.LEGACY) == self.EXPECTED
        assert message_from_json(self.LEGACY.encode()) == self.EXPECTED

    def test_a_legacy_tool_result_is_read_within_a_list(self):
        text = f'[{{"type":"SYSTEM","text":"a"}},{self.LEGACY},{message_to_json(self.EXPECTED)}]'

        assert messages_from_json(text) == [SystemMessage("a"), self.EXPECTED, self.EXPECTED]

    def test_contents_take_precedence_over_text(self):
        text = '{"type":"TOOL_EXECUTION_RESULT","text":"old","contents":[{"type":"TEXT","text":"new"}]}'

        assert message_from_json(text).text == "new"

    @pytest.mark.parametrize("rest", ["", ',"text":null'], ids=["absent", "null"])
    def test_a_tool_result_without_any_text_is_rejected(self, rest):
        with pytest.raises(ValueError, match=r"^\$: ToolExecutionResultMessage\.contents is empty"):
            message_from_json(f'{{"type":"TOOL_EXECUTION_RESULT","id":"1"{rest}}}')


TEXT = '{"type":"TEXT","text":"a"}'
NULLS = {
    "user_attributes": (f'{{"type":"USER","contents":[{TEXT}],"attributes":null}}', UserMessage("a")),
    "ai_attributes": ('{"type":"AI","text":"a","attributes":null}', AiMessage("a")),
    "ai_requests": ('{"type":"AI","text":"a","toolExecutionRequests":null}', AiMessage("a")),
    "result_attributes": (
        f'{{"type":"TOOL_EXECUTION_RESULT","contents":[{TEXT}],"attributes":null}}',
        ToolExecutionResultMessage(contents="a"),
    ),
    "result_contents_with_text": (
        '{"type":"TOOL_EXECUTION_RESULT","text":"a","contents":null}',
        ToolExecutionResultMessage(contents="a"),
    ),
    "result_contents_empty_with_text": (
        '{"type":"TOOL_EXECUTION_RESULT","text":"a","contents":[]}',
        ToolExecutionResultMessage(contents="a"),
    ),
    "custom_attributes": ('{"type":"CUSTOM","attributes":null}', CustomMessage({})),
    "custom_without_attributes": ('{"type":"CUSTOM"}', CustomMessage({})),
    "level_of_an_image": (
        '{"type":"USER","contents":[{"type":"IMAGE","image":{"url":"a"},"detailLevel":null}]}',
        UserMessage([ImageContent(Image(url="a"), DetailLevel.LOW)]),
    ),
    "several": (
        '{"attributes":null,"contents":[],"text":"","isError":null,"id":null,"type":"TOOL_EXECUTION_RESULT"}',
        ToolExecutionResultMessage(contents=""),
    ),
    "with_a_lone_surrogate": (
        '{"type":"AI","attributes":null,"text":"\\udc00","toolExecutionRequests":null}',
        AiMessage("\udc00"),
    ),
}
NULLS_REFUSED = {
    "system_text": ('{"type":"SYSTEM","text":null}', r"\.text: Expected `str`, got `null`\.$"),
    "user_contents": ('{"type":"USER","contents":null}', r"\.contents: Expected `array`, got `null`\.$"),
    "text_of_a_content": (
        '{"type":"USER","attributes":null,"contents":[{"type":"TEXT","text":null}]}',
        r"\.contents\[0\]\.text: Expected `str`, got `null`\.$",
    ),
    "image_of_a_content": (
        f'{{"type":"USER","contents":[{TEXT},{{"type":"IMAGE","image":null}}],"attributes":null}}',
        r"\.contents\[1\]\.image: Expected `object`, got `null`\.$",
    ),
    "one_of_the_requests": (
        '{"type":"AI","attributes":null,"toolExecutionRequests":[{},null]}',
        r"\.toolExecutionRequests\[1\]: Expected `object`, got `null`\.$",
    ),
    "type": (f'{{"type":null,"text":"{PRIVATE}"}}', r"\.type: Expected `str`"),
    "contents_without_text": (
        '{"type":"TOOL_EXECUTION_RESULT","contents":null}',
        r"\.contents: Expected `array`, got `null`\.$",
    ),
    "contents_and_text": (
        '{"type":"TOOL_EXECUTION_RESULT","contents":null,"text":null}',
        r"\.contents: Expected `array`, got `null`\.$",
    ),
    "contents_empty_and_no_text": (
        '{"type":"TOOL_EXECUTION_RESULT","contents":[],"text":null}',
        r": ToolExecutionResultMessage\.contents is empty",
    ),
    "contents_of_another_type_with_text": (
        f'{{"type":"TOOL_EXECUTION_RESULT","contents":"","text":"{PRIVATE}","attributes":null}}',
        r"\.contents: Expected `array`, got `str`\.$",
    ),
    "text_of_another_type": (
        f'{{"type":"TOOL_EXECUTION_RESULT","text":["{PRIVATE}"]}}',
        r": ToolExecutionResultMessage\.contents is empty",
    ),
    "attributes_that_are_a_list": (
        '{"type":"AI","toolExecutionRequests":null,"attributes":[]}',
        r"\.attributes: Expected `object`, got `array`\.$",
    ),
    "contents_of_a_user_with_text": (
        f'{{"type":"USER","contents":[],"text":"{PRIVATE}","attributes":null}}',
        r": UserMessage\.contents is empty",
    ),
    "no_number_after_it": (f'{{"type":"AI","attributes":null,"more":["{PRIVATE}",NaN]}}', r"malformed"),
    "no_json_after_it": (f'{{"type":"AI","attributes":null,"text":"{PRIVATE}",}}', r"malformed"),
}


class TestNullForAbsent:
    """Fields that may be absent may also be null, as in LangChain4j."""

    @pytest.mark.parametrize(("text", "message"), NULLS.values(), ids=NULLS.keys())
    def test_null_is_read(self, text, message):
        assert message_from_json(text) == message
        assert message_from_json(text.encode()) == message
        assert messages_from_json(f'[{{"type":"SYSTEM","text":"b"}},{text}]') == [SystemMessage("b"), message]

    @pytest.mark.parametrize(("text", "reason"), NULLS_REFUSED.values(), ids=NULLS_REFUSED.keys())
    def test_null_is_rejected_elsewhere(self, text, reason):
        with pytest.raises(ValueError, match=rf"^\$.*{reason}") as alone:
            message_from_json(text)
        with pytest.raises(ValueError, match=rf"^\$.*{reason}") as listed:
            messages_from_json(f'[{{"type":"AI","attributes":null}},{text}]')

        assert PRIVATE not in f"{alone.value} {listed.value}"
        if reason != "malformed":
            where, _, _ = str(alone.value).partition(": ")
            assert str(listed.value).startswith(f"{where.replace('$', '$[1]')}: ")

    @given(messages(), st.data())
    def test_any_absent_field_may_be_null(self, message, data):
        as_json = json.loads(message_to_json(message))
        for item, name in absent(message, as_json):
            if data.draw(st.booleans(), label=name):
                item[name] = None

        assert message_from_json(json.dumps(as_json)) == message
        assert messages_from_json(json.dumps([as_json, as_json])) == [message, message]

    @given(texts(), st.sampled_from([{}, {"contents": None}, {"contents": []}]), st.booleans())
    def test_any_text_of_a_legacy_tool_result_becomes_its_contents(self, text, contents, is_first):
        as_json = {"type": "TOOL_EXECUTION_RESULT", "text": text}

        read = message_from_json(json.dumps({**contents, **as_json} if is_first else {**as_json, **contents}))

        assert read == ToolExecutionResultMessage(contents=text)

    def test_a_row_with_such_a_payload_is_read(self):
        assert to_message("AI", "a", NULLS["ai_requests"][0]) == AiMessage("a")


def absent(value, as_json):
    """List the objects in *value*, the JSON of *message*, each with the name of an optional field that it lacks."""
    if isinstance(value, tuple):
        for each, its in zip(value, as_json, strict=True):
            yield from absent(each, its)
    elif isinstance(value, msgspec.Struct):
        for field in fields(value):
            if field.encode_name in as_json:
                yield from absent(getattr(value, field.name), as_json[field.encode_name])
            elif not field.required:
                yield as_json, field.encode_name


class TestUnusualCharacters:
    """JSON can represent NUL and lone surrogates, so both are read and written; stores may reject them."""

    ODD = (
        "a\0b",
        "lone low \udc00 end",
        "lone high \ud83d and some more",
        "two high \ud83d\ud83d and some more",
        "swapped \ude00\ud83d and some more",
        "whole 😀 and half \ud83d of it",
        "high at the end \ud83d",
        'high before quotation marks \ud83d""',
        "high before a backslash \ud83d\\u0041",
        "\x7f\x80\u2028\ufeff\uffff",
    )

    @pytest.mark.parametrize("text", ODD, ids=ascii)
    def test_unusual_texts_are_read_as_they_were_written(self, text):
        message = UserMessage(text, text, {text: text})

        assert message_from_json(message_to_json(message)) == message
        assert messages_from_json(messages_to_json([message, message])) == [message, message]

    @pytest.mark.parametrize("text", ODD, ids=ascii)
    def test_unusual_texts_are_read_escaped_or_not(self, text):
        bare = json.dumps({"type": "SYSTEM", "text": text}, ensure_ascii=False)
        escaped = json.dumps({"type": "SYSTEM", "text": text})

        assert message_from_json(bare) == SystemMessage(text)
        assert message_from_json(escaped) == SystemMessage(text)
        assert message_from_json(escaped.encode()) == SystemMessage(text)

    def test_the_output_is_always_utf8(self):
        message = UserMessage("\ud83d and more", attributes={"\udc00": 10**30, "b": 1.5})

        written = message_to_json(message).encode()

        assert message_from_json(written) == message

    def test_adjacent_surrogate_halves_become_one_character(self):
        assert message_from_json(r'{"type":"SYSTEM","text":"\ud83d\ude00"}') == SystemMessage("😀")


BAD_MESSAGES = {
    "nothing": ("", r"^\$: Input data was truncated\.$"),
    "not_json": (PRIVATE, r"^\$: JSON is malformed: invalid character \(byte 0\)\.$"),
    "truncated_in_a_text": (f'{{"type":"SYSTEM","text":"{PRIVATE}', r"^\$: Input data was truncated\.$"),
    "truncated_after_a_text": (f'{{"type":"SYSTEM","text":"{PRIVATE}"', r"^\$: Input data was truncated\.$"),
    "trailing_garbage": (f'{{"type":"SYSTEM","text":"a"}} {PRIVATE}', r"^\$: JSON is malformed: trailing characters"),
    "a_second_message": (f'{{"type":"SYSTEM","text":"a"}}{{"a":"{PRIVATE}"}}', "trailing characters"),
    "list": (f'[{{"type":"SYSTEM","text":"{PRIVATE}"}}]', r"^\$: Expected `object`, got `array`\.$"),
    "str": (f'"{PRIVATE}"', r"^\$: Expected `object`, got `str`\.$"),
    "null": ("null", r"^\$: Expected `object`, got `null`\.$"),
    "no_type": (f'{{"text":"{PRIVATE}"}}', r"^\$\.type is missing\.$"),
    "wrong_type": (f'{{"type":"ASSISTANT","text":"{PRIVATE}"}}', r"^\$\.type: Invalid value 'ASSISTANT'\.$"),
    "type_in_lower_case": (f'{{"type":"user","contents":"{PRIVATE}"}}', r"^\$\.type: Invalid value 'user'\.$"),
    "type_is_not_a_str": (f'{{"type":1,"text":"{PRIVATE}"}}', r"^\$\.type: Expected `str`"),
    "no_text": ('{"type":"SYSTEM"}', r"^\$\.text is missing\.$"),
    "text_is_not_a_str": (f'{{"type":"SYSTEM","text":["{PRIVATE}"]}}', r"^\$\.text: Expected `str`, got `array`\.$"),
    "text_is_null": ('{"type":"SYSTEM","text":null}', r"^\$\.text: Expected `str`, got `null`\.$"),
    "blank_system": ('{"type":"SYSTEM","text":" \\n "}', r"^\$: SystemMessage\.text is blank"),
    "no_contents": ('{"type":"USER"}', r"^\$\.contents is missing\.$"),
    "empty_contents": ('{"type":"USER","contents":[]}', r"^\$: UserMessage\.contents is empty"),
    "contents_as_str": (f'{{"type":"USER","contents":"{PRIVATE}"}}', r"^\$\.contents: Expected `array`, got `str`\.$"),
    "content_as_str": (f'{{"type":"USER","contents":["{PRIVATE}"]}}', r"^\$\.contents\[0\]: Expected `.*`, got `str`"),
    "wrong_content": (
        f'{{"type":"USER","contents":[{{"type":"TEXT","text":"{PRIVATE}"}},{{"type":"SMELL"}}]}}',
        r"^\$\.contents\[1\]\.type: Invalid value 'SMELL'\.$",
    ),
    "no_image": (
        f'{{"type":"USER","contents":[{{"type":"TEXT","text":"{PRIVATE}"}},{{"type":"IMAGE"}}]}}',
        r"^\$\.contents\[1\]\.image is missing\.$",
    ),
    "wrong_detail_level": (
        f'{{"type":"USER","contents":[{{"type":"IMAGE","image":{{"url":"{PRIVATE}"}},"detailLevel":"TINY"}}]}}',
        r"^\$\.contents\[0\]\.detailLevel: Invalid enum value 'TINY'\.$",
    ),
    "wrong_base64": (
        f'{{"type":"USER","contents":[{{"type":"AUDIO","audio":{{"binaryData":"{PRIVATE}!"}}}}]}}',
        r"^\$\.contents\[0\]\.audio\.binaryData: Invalid base64",
    ),
    "wrong_name": (
        f'{{"type":"USER","contents":[{{"type":"TEXT","text":"{PRIVATE}"}}],"name":5}}',
        r"^\$\.name: Expected `str \| null`, got `int`\.$",
    ),
    "wrong_request": (
        f'{{"type":"AI","text":"{PRIVATE}","toolExecutionRequests":[{{}},{{"arguments":{{"a":"{PRIVATE}"}}}}]}}',
        r"^\$\.toolExecutionRequests\[1\]\.arguments: Expected `str \| null`, got `object`\.$",
    ),
    "wrong_is_error": (
        f'{{"type":"TOOL_EXECUTION_RESULT","contents":[{{"type":"TEXT","text":"{PRIVATE}"}}],"isError":"no"}}',
        r"^\$\.isError: Expected `bool \| null`, got `str`\.$",
    ),
    "wrong_is_error_in_a_legacy_result": (
        f'{{"type":"TOOL_EXECUTION_RESULT","text":"{PRIVATE}","isError":"no"}}',
        r"^\$\.isError: Expected `bool \| null`, got `str`\.$",
    ),
    "wrong_type_with_a_lone_surrogate": (
        f'{{"type":"AI","text":"\\udc00{PRIVATE}","thinking":5}}',
        r"^\$\.thinking: Expected `str \| null`, got `int`\.$",
    ),
    "malformed_with_a_lone_surrogate": (f'{{"type":"AI","text":"\\udc00{PRIVATE}",}}', r"^\$.*surrogate"),
    "wrong_attributes": (f'{{"type":"CUSTOM","attributes":["{PRIVATE}"]}}', r"^\$\.attributes: Expected `object`"),
    "float_out_of_range": (f'{{"type":"CUSTOM","attributes":{{"a":"{PRIVATE}","n":1e999}}}}', "Number out of range"),
    "integer_out_of_range": (
        f'{{"type":"CUSTOM","attributes":{{"a":"{PRIVATE}","n":{"9" * 10_000}}}}}',
        "Integer value out of range",
    ),
    "nan": (f'{{"type":"CUSTOM","attributes":{{"a":"{PRIVATE}","n":NaN}}}}', "malformed: invalid character"),
    "nan_with_a_lone_surrogate": (
        f'{{"type":"CUSTOM","attributes":{{"a":"\\udc00{PRIVATE}","n":NaN}}}}',
        r"^\$: CustomMessage\.attributes\['n'\] is nan",
    ),
    "attributes_101_deep": (
        f'{{"type":"CUSTOM","attributes":{{"a":{"[" * 100}"{PRIVATE}"{"]" * 100}}}}}',
        r"^\$: CustomMessage\.attributes are nested deeper than 100 levels",
    ),
    "attributes_100_000_deep": (
        f'{{"type":"CUSTOM","attributes":{{"a":{"[" * 100_000}"{PRIVATE}"{"]" * 100_000}}}}}',
        r"^\$: the JSON is nested too deeply\.$",
    ),
    "objects_100_000_deep": ('{"a":' * 100_000, r"^\$: the JSON is nested too deeply\.$"),
    "depth_with_a_lone_surrogate": (
        f'{{"type":"CUSTOM","attributes":{{"b":"\\udc00","a":{"[" * 100_000}{"]" * 100_000}}}}}',
        r"^\$: the JSON is nested too deeply\.$",
    ),
    "not_utf8": (f'{{"type":"SYSTEM","text":"{PRIVATE}'.encode() + b'\xff"}', r"^\$: the JSON is not UTF-8\.$"),
    "lone_surrogate_as_utf8": (b'{"type":"SYSTEM","text":"\xed\xa0\x80"}', r"^\$: the JSON is not UTF-8\.$"),
    "utf16": (f'{{"type":"SYSTEM","text":"{PRIVATE}"}}'.encode("utf-16"), r"^\$: "),
    "a_long_tag": (
        f'{{"type":"{"x" * 100_000}","text":"{PRIVATE}"}}',
        rf"^\$\.type: Invalid value 'x{{1,{MAX_REASON}}}\.$",
    ),
}
BAD_LISTS = {
    "nothing": ("", r"^\$: Input data was truncated\.$"),
    "one_message": (f'{{"type":"SYSTEM","text":"{PRIVATE}"}}', r"^\$: Expected `array | null`, got `object`\.$"),
    "a_number": (f'[{{"type":"SYSTEM","text":"{PRIVATE}"}},1]', r"^\$\[1\]: Expected `object`, got `int`\.$"),
    "a_list": (f'[["{PRIVATE}"]]', r"^\$\[0\]: Expected `object`, got `array`\.$"),
    "no_image": (
        "[" + f'{{"type":"SYSTEM","text":"{PRIVATE}"}},' * 3 + '{"type":"USER","contents":[{"type":"IMAGE"}]}]',
        r"^\$\[3\]\.contents\[0\]\.image is missing\.$",
    ),
    "blank_system": (
        f'[{{"type":"SYSTEM","text":"{PRIVATE}"}},{{"type":"SYSTEM","text":""}}]',
        r"^\$\[1\]: SystemMessage\.text is blank",
    ),
    "legacy_with_wrong_id": (
        f'[{{"type":"SYSTEM","text":"a"}},{{"type":"TOOL_EXECUTION_RESULT","text":"{PRIVATE}","id":1}}]',
        r"^\$\[1\]\.id: Expected `str \| null`, got `int`\.$",
    ),
    "trailing_comma": (f'[{{"type":"SYSTEM","text":"{PRIVATE}"}},]', r"^\$.*malformed"),
    "100_000_deep": ("[" * 100_000 + "]" * 100_000, r"^\$"),
}


class TestInvalidInputIsRejected:
    """A ``ValueError`` names position and reason, never the text."""

    @pytest.mark.parametrize(("text", "reason"), BAD_MESSAGES.values(), ids=BAD_MESSAGES.keys())
    def test_an_invalid_message_is_rejected(self, text, reason):
        with pytest.raises(ValueError, match=reason) as error:
            message_from_json(text)

        assert type(error.value) is ValueError
        assert PRIVATE not in str(error.value)
        assert error.value.__cause__ is None
        assert error.value.__suppress_context__

    @pytest.mark.parametrize(("text", "reason"), BAD_LISTS.values(), ids=BAD_LISTS.keys())
    def test_an_invalid_list_is_rejected(self, text, reason):
        with pytest.raises(ValueError, match=reason) as error:
            messages_from_json(text)

        assert type(error.value) is ValueError
        assert PRIVATE not in str(error.value)

    def test_fifty_megabytes_of_an_unterminated_text_are_rejected(self):
        text = '{"type":"SYSTEM","text":"' + "x" * 50_000_000

        with pytest.raises(ValueError, match=r"^\$: Input data was truncated\.$"):
            message_from_json(text)

    def test_fifty_megabytes_of_an_unterminated_list_are_rejected(self):
        message = '{"type":"SYSTEM","text":"' + "x" * 1_000 + '"},'

        with pytest.raises(ValueError, match=r"^\$: Input data was truncated\.$"):
            messages_from_json("[" + message * (50_000_000 // len(message)))

    @pytest.mark.parametrize("read", [message_from_json, messages_from_json])
    @pytest.mark.parametrize("value", [1, ["[]"], memoryview(b"[]")], ids=["int", "list", "memoryview"])
    def test_input_other_than_str_or_bytes_raises_a_type_error(self, read, value):
        with pytest.raises(TypeError, match=rf"^JSON must be str or bytes, not {type(value).__name__}\.$"):
            read(value)

    @given(messages(), st.data())
    def test_json_truncated_anywhere_is_rejected(self, message, data):
        written = message_to_json(message)
        length = data.draw(st.integers(0, len(written) - 1))

        with pytest.raises(ValueError, match=r"^\$"):
            message_from_json(written[:length])


class TestRoundTrip:
    @given(messages(storable=True))
    def test_any_storable_message_survives_json(self, message):
        written = message_to_json(message)

        read = message_from_json(written)

        assert read == message
        assert message_to_json(read) == written
        assert json.loads(written)["type"] == message.type

    @given(messages())
    def test_any_message_survives_json(self, message):
        assert message_from_json(message_to_json(message)) == message

    @given(texts())
    def test_any_text_survives_json(self, text):
        assert message_from_json(message_to_json(AiMessage(text))) == AiMessage(text)

    @given(st.lists(messages(storable=True), max_size=5))
    def test_any_list_of_messages_survives_json(self, several):
        assert messages_from_json(messages_to_json(several)) == several
