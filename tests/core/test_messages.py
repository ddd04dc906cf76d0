"""Messages are values: equal by their fields, validated, and immutable."""

import copy
import pickle
import re
from enum import IntEnum

import pytest
from django.utils.safestring import mark_safe
from hypothesis import given

from chatmemory_django.messages import (
    MAX_ATTRIBUTE_DEPTH,
    AiMessage,
    Audio,
    AudioContent,
    CustomMessage,
    DetailLevel,
    Image,
    ImageContent,
    MessageType,
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
from tests.strategies import messages

PRIVATE = "what no one else may read"
CALL = ToolExecutionRequest("1", "weather", '{"city": "Munich"}')
PICTURE = ImageContent(Image(url="https://example.org/a.png"))
ONE_OF_EACH = {
    "system": SystemMessage("Be brief."),
    "user": UserMessage("Hi", "Klaus", {"a": {"b": [1, None]}}),
    "user_media": UserMessage(
        [
            PICTURE,
            AudioContent(Audio(binary_data=b"\0\xff")),
            VideoContent(Video(base64_data="AAAA", mime_type="video/mp4")),
            PdfFileContent(PdfFile(url="file:///a.pdf")),
            None,
        ]
    ),
    "ai": AiMessage("Let me see.", "Hm.", [CALL], {"k": 1}),
    "tool_result": ToolExecutionResultMessage("1", "weather", "sunny", False, {"k": 1}),
    "custom": CustomMessage({"any": ["json"]}),
}
each_message = pytest.mark.parametrize("message", ONE_OF_EACH.values(), ids=ONE_OF_EACH.keys())


def nested(levels: int) -> dict:
    """Return attributes of that many levels, including themselves."""
    value: object = []
    for _ in range(levels - 2):
        value = [value]
    return {"a": value}


class TestConstruction:
    def test_fields_are_in_the_documented_order(self):
        user = UserMessage("Hi", "Klaus", {"k": 1})
        ai = AiMessage("Hello", "Hm", [CALL], {"k": 1})
        result = ToolExecutionResultMessage("1", "weather", "sunny", True, {"k": 1})

        assert user == UserMessage(contents="Hi", name="Klaus", attributes={"k": 1})
        assert ai == AiMessage(text="Hello", thinking="Hm", tool_execution_requests=[CALL], attributes={"k": 1})
        assert result == ToolExecutionResultMessage(
            id="1", tool_name="weather", contents="sunny", is_error=True, attributes={"k": 1}
        )

    def test_omitted_fields_are_none_or_empty(self):
        assert (UserMessage("Hi").name, UserMessage("Hi").attributes) == (None, {})
        assert (AiMessage().text, AiMessage().thinking) == (None, None)
        assert (AiMessage().tool_execution_requests, AiMessage().attributes) == ((), {})
        assert ToolExecutionResultMessage("1", "t", "4").is_error is None
        assert ToolExecutionRequest() == ToolExecutionRequest(None, None, None)

    @pytest.mark.parametrize(
        ("message", "type"),
        [
            (ONE_OF_EACH["system"], "SYSTEM"),
            (ONE_OF_EACH["user"], "USER"),
            (ONE_OF_EACH["ai"], "AI"),
            (ONE_OF_EACH["tool_result"], "TOOL_EXECUTION_RESULT"),
            (ONE_OF_EACH["custom"], "CUSTOM"),
        ],
    )
    def test_a_message_knows_its_type(self, message, type):
        assert message.type is MessageType(type)

    @pytest.mark.parametrize("text", ["Hi", ""], ids=["some", "empty"])
    def test_a_str_becomes_a_single_text(self, text):
        user = UserMessage(text)
        result = ToolExecutionResultMessage("1", "t", text)

        assert user.contents == (TextContent(text),)
        assert result.contents == (TextContent(text),)

    @pytest.mark.parametrize("sequence", [list, tuple], ids=["list", "tuple"])
    def test_sequences_become_tuples(self, sequence):
        contents = [TextContent("What is this?"), PICTURE]

        assert UserMessage(sequence(contents)).contents == tuple(contents)
        assert ToolExecutionResultMessage("1", "t", sequence(contents)).contents == tuple(contents)
        assert AiMessage(tool_execution_requests=sequence([CALL])).tool_execution_requests == (CALL,)

    def test_contents_may_be_none_and_media_may_lack_data(self):
        message = UserMessage([None, AudioContent(), VideoContent(), PdfFileContent()])

        assert message.contents[0] is None
        assert [message.contents[1].audio, message.contents[2].video, message.contents[3].pdf_file] == [None] * 3

    def test_the_default_detail_of_an_image_is_low(self):
        assert ImageContent(Image(url="a")).detail_level is DetailLevel.LOW
        assert ImageContent(Image(url="a"), DetailLevel.HIGH).detail_level is DetailLevel.HIGH

    def test_a_result_takes_its_id_and_name_from_the_request(self):
        text = ToolExecutionResultMessage.from_request(CALL, "sunny")
        picture = ToolExecutionResultMessage.from_request(CALL, [PICTURE])

        assert text == ToolExecutionResultMessage("1", "weather", "sunny")
        assert picture == ToolExecutionResultMessage("1", "weather", [PICTURE])

    @pytest.mark.parametrize("is_error", [True, False, None])
    def test_a_result_may_be_an_error(self, is_error):
        answer = ToolExecutionResultMessage.from_request(CALL, "no such city", is_error=is_error)

        assert answer == ToolExecutionResultMessage("1", "weather", "no such city", is_error)

    def test_the_repr_of_a_message_shows_its_text(self):
        assert repr(SystemMessage("Be brief.")) == "SystemMessage(text='Be brief.')"
        assert "text='Hi'" in repr(UserMessage("Hi"))


class TestBlankSystemMessages:
    """Blank is what Java's trim() empties: characters up to the space, and no others."""

    @pytest.mark.parametrize("text", ["", " ", "\n\t\r", "\0", "\x1f \x01"], ids=ascii)
    def test_a_blank_system_message_is_rejected(self, text):
        with pytest.raises(ValueError, match=r"^SystemMessage\.text is blank"):
            SystemMessage(text)

    @pytest.mark.parametrize("text", ["\xa0", "\u2003", "\u3000", "\x7f", "\u200b", " x "], ids=ascii)
    def test_characters_that_java_does_not_trim_are_text(self, text):
        assert SystemMessage(text).text == text


class TestSingleText:
    def test_one_text_is_a_single_text(self):
        assert UserMessage("Hi").has_single_text
        assert UserMessage("Hi").single_text == "Hi"
        assert UserMessage([TextContent("")]).single_text == ""
        assert ToolExecutionResultMessage("1", "t", "4").text == "4"

    @pytest.mark.parametrize(
        ("contents", "kinds"),
        [
            ([TextContent(PRIVATE), TextContent(PRIVATE)], "TextContent, TextContent"),
            ([PICTURE], "ImageContent"),
            ([TextContent(PRIVATE), PICTURE], "TextContent, ImageContent"),
            ([None], "NoneType"),
        ],
        ids=["two_texts", "picture", "text_and_picture", "none"],
    )
    def test_other_contents_raise_an_error_that_names_them(self, contents, kinds):
        user = UserMessage(contents)
        result = ToolExecutionResultMessage("1", "t", contents)

        assert not user.has_single_text
        with pytest.raises(ValueError, match=rf"^UserMessage is not a single text but \({kinds}\)") as of_user:
            _ = user.single_text
        with pytest.raises(ValueError, match=rf"^ToolExecutionResultMessage is not .* but \({kinds}\)") as of_result:
            _ = result.text
        assert PRIVATE not in f"{of_user.value}{of_result.value}"


class TestEquality:
    @each_message
    def test_a_message_equals_one_with_the_same_fields(self, message):
        assert message == copy.deepcopy(message)

    def test_messages_of_different_types_differ(self):
        kinds = list(ONE_OF_EACH.values())

        assert [a == b for a in kinds for b in kinds] == [a is b for a in kinds for b in kinds]

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (SystemMessage("a"), SystemMessage("b")),
            (SystemMessage("a"), UserMessage("a")),
            (UserMessage("a"), AiMessage("a")),
            (UserMessage("a"), UserMessage("a", "Klaus")),
            (UserMessage("a"), UserMessage("a", attributes={"k": 1})),
            (UserMessage("a"), UserMessage("a", name="")),
            (AiMessage("a"), AiMessage("a", "b")),
            (AiMessage("a"), AiMessage("a", tool_execution_requests=[CALL])),
            (AiMessage(), AiMessage("")),
            (ToolExecutionResultMessage("1", "t", "4"), ToolExecutionResultMessage("1", "t", "4", False)),
            (ToolExecutionResultMessage("1", "t", "4"), ToolExecutionResultMessage("2", "t", "4")),
            (CustomMessage({}), CustomMessage({"k": None})),
            (ImageContent(Image(url="a")), ImageContent(Image(url="a"), DetailLevel.HIGH)),
            (AudioContent(), VideoContent()),
            (Video(url="a"), PdfFile(url="a")),
        ],
        ids=lambda value: None,
    )
    def test_messages_that_differ_in_one_field_or_the_type_differ(self, one, other):
        assert one != other

    def test_equal_messages_have_the_same_hash(self):
        distinct = {
            AiMessage("a", "b", [CALL], {"k": 1, "l": "m"}),
            AiMessage("a", "b", (CALL,), {"l": "m", "k": 1}),
            UserMessage([TextContent("a"), PICTURE]),
            UserMessage((TextContent("a"), PICTURE)),
            SystemMessage("a"),
            ToolExecutionResultMessage("1", "t", "4"),
            CustomMessage({}),
        }

        assert len(distinct) == 5

    @pytest.mark.parametrize(
        "message",
        [UserMessage("a", attributes={"k": [1]}), CustomMessage({"k": {"l": 1}})],
        ids=["list", "dict"],
    )
    def test_a_message_with_an_unhashable_attribute_is_unhashable(self, message):
        with pytest.raises(TypeError, match="unhashable"):
            hash(message)


class TestImmutability:
    @pytest.mark.parametrize(
        ("value", "field"),
        [
            (SystemMessage("a"), "text"),
            (UserMessage("a"), "contents"),
            (AiMessage("a"), "text"),
            (CALL, "arguments"),
            (ToolExecutionResultMessage("1", "t", "4"), "is_error"),
            (CustomMessage({}), "attributes"),
            (TextContent("a"), "text"),
            (PICTURE, "image"),
            (Image(url="a"), "url"),
            (AudioContent(), "audio"),
            (Audio(url="a"), "binary_data"),
        ],
        ids=lambda value: value if isinstance(value, str) else type(value).__name__,
    )
    def test_no_field_can_be_set_or_deleted(self, value, field):
        before = getattr(value, field)

        with pytest.raises(AttributeError):
            setattr(value, field, "other")
        with pytest.raises((AttributeError, TypeError)):
            delattr(value, field)
        with pytest.raises(AttributeError):
            value.other = 1

        assert getattr(value, field) is before

    @pytest.mark.parametrize(
        "change",
        [
            lambda attributes: attributes.__setitem__("k", 2),
            lambda attributes: attributes.__delitem__("k"),
            lambda attributes: attributes.__ior__({"k": 2}),
            lambda attributes: attributes.clear(),
            lambda attributes: attributes.pop("k"),
            lambda attributes: attributes.popitem(),
            lambda attributes: attributes.setdefault("l", 2),
            lambda attributes: attributes.update(k=2),
        ],
        ids=["set", "delete", "ior", "clear", "pop", "popitem", "setdefault", "update"],
    )
    def test_attributes_cannot_be_changed(self, change):
        message = AiMessage("a", attributes={"k": 1})

        with pytest.raises(TypeError, match="cannot be changed; build a new message instead"):
            change(message.attributes)

        assert message.attributes == {"k": 1}

    def test_the_shared_empty_attributes_cannot_be_changed(self):
        with pytest.raises(TypeError, match="cannot be changed"):
            UserMessage("a").attributes["k"] = 1

        assert AiMessage("b").attributes == {}

    def test_later_changes_by_the_caller_do_not_change_the_message(self):
        contents, calls, attributes = [TextContent("a")], [CALL], {"a": {"b": [1]}}
        user, ai = UserMessage(contents, attributes=attributes), AiMessage(None, None, calls, attributes)

        contents.append(None)
        calls.clear()
        attributes["a"]["b"].append(2)
        attributes["c"] = 3

        assert user == UserMessage("a", attributes={"a": {"b": [1]}})
        assert ai == AiMessage(tool_execution_requests=[CALL], attributes={"a": {"b": [1]}})


class TestCopies:
    @each_message
    @pytest.mark.parametrize(
        "copied",
        [copy.copy, copy.deepcopy, lambda message: pickle.loads(pickle.dumps(message))],
        ids=["copy", "deepcopy", "pickle"],
    )
    def test_a_copy_is_equal_and_as_immutable(self, message, copied):
        twin = copied(message)

        assert twin == message
        assert type(twin) is type(message)
        if hasattr(twin, "attributes"):
            with pytest.raises(TypeError, match="cannot be changed"):
                twin.attributes["k"] = 2

    @given(messages())
    def test_any_message_survives_pickling(self, message):
        assert pickle.loads(pickle.dumps(message)) == message


WRONG_TYPES = {
    "system_text_none": (lambda: SystemMessage(None), "SystemMessage.text must be str, not NoneType."),
    "system_text_list": (lambda: SystemMessage([PRIVATE]), "SystemMessage.text must be str, not list."),
    "text_bytes": (lambda: TextContent(PRIVATE.encode()), "TextContent.text must be str, not bytes."),
    "contents_none": (lambda: UserMessage(None), "UserMessage.contents must be a sequence, not NoneType."),
    "contents_bytes": (
        lambda: UserMessage(PRIVATE.encode()),
        "UserMessage.contents must be a sequence, not bytes.",
    ),
    "contents_bare_content": (
        lambda: UserMessage(TextContent(PRIVATE)),
        "UserMessage.contents must be a sequence, not TextContent.",
    ),
    "contents_set": (
        lambda: UserMessage({TextContent(PRIVATE)}),
        "UserMessage.contents must be a sequence, not set.",
    ),
    "contents_of_str": (
        lambda: UserMessage([TextContent(PRIVATE), PRIVATE]),
        "UserMessage.contents[1] must be TextContent or ImageContent or AudioContent or VideoContent or "
        "PdfFileContent or NoneType, not str.",
    ),
    "user_name": (lambda: UserMessage("a", [PRIVATE]), "UserMessage.name must be str or None, not list."),
    "user_attributes_none": (
        lambda: UserMessage("a", attributes=None),
        "UserMessage.attributes must be a mapping, not NoneType.",
    ),
    "ai_text": (lambda: AiMessage([PRIVATE]), "AiMessage.text must be str or None, not list."),
    "ai_thinking": (lambda: AiMessage("a", 1), "AiMessage.thinking must be str or None, not int."),
    "ai_requests_none": (
        lambda: AiMessage("a", None, None),
        "AiMessage.tool_execution_requests must be a sequence, not NoneType.",
    ),
    "ai_requests_str": (
        lambda: AiMessage("a", None, PRIVATE),
        "AiMessage.tool_execution_requests must be a sequence, not str.",
    ),
    "ai_requests_of_none": (
        lambda: AiMessage("a", None, [CALL, None]),
        "AiMessage.tool_execution_requests[1] must be ToolExecutionRequest, not NoneType.",
    ),
    "ai_attributes": (
        lambda: AiMessage("a", attributes=[PRIVATE]),
        "AiMessage.attributes must be a mapping, not list.",
    ),
    "request_id": (lambda: ToolExecutionRequest(1), "ToolExecutionRequest.id must be str or None, not int."),
    "request_name": (
        lambda: ToolExecutionRequest("1", [PRIVATE]),
        "ToolExecutionRequest.name must be str or None, not list.",
    ),
    "request_arguments": (
        lambda: ToolExecutionRequest("1", "t", {PRIVATE: 1}),
        "ToolExecutionRequest.arguments must be str or None, not dict.",
    ),
    "result_id": (
        lambda: ToolExecutionResultMessage(1, "t", "4"),
        "ToolExecutionResultMessage.id must be str or None, not int.",
    ),
    "result_tool_name": (
        lambda: ToolExecutionResultMessage("1", [PRIVATE], "4"),
        "ToolExecutionResultMessage.tool_name must be str or None, not list.",
    ),
    "result_contents": (
        lambda: ToolExecutionResultMessage("1", "t", 4),
        "ToolExecutionResultMessage.contents must be a sequence, not int.",
    ),
    "result_is_error": (
        lambda: ToolExecutionResultMessage("1", "t", "4", 1),
        "ToolExecutionResultMessage.is_error must be bool or None, not int.",
    ),
    "result_text": (
        lambda: ToolExecutionResultMessage(id="1", tool_name="t", text=PRIVATE),
        "ToolExecutionResultMessage has no argument 'text'; pass the text as contents, the third argument: "
        'ToolExecutionResultMessage(id, tool_name, contents="…").',
    ),
    "result_attributes": (
        lambda: ToolExecutionResultMessage("1", "t", "4", attributes=PRIVATE),
        "ToolExecutionResultMessage.attributes must be a mapping, not str.",
    ),
    "custom_attributes": (lambda: CustomMessage(PRIVATE), "CustomMessage.attributes must be a mapping, not str."),
    "image": (lambda: ImageContent(PRIVATE), "ImageContent.image must be Image, not str."),
    "image_none": (lambda: ImageContent(None), "ImageContent.image must be Image, not NoneType."),
    "detail_level": (
        lambda: ImageContent(Image(), "LOW"),
        "ImageContent.detail_level must be DetailLevel, not str.",
    ),
    "image_url": (lambda: Image(url=[PRIVATE]), "Image.url must be str or None, not list."),
    "image_base64_data": (
        lambda: Image(base64_data=b"AA"),
        "Image.base64_data must be str or None, not bytes.",
    ),
    "image_mime_type": (lambda: Image(mime_type=1), "Image.mime_type must be str or None, not int."),
    "image_revised_prompt": (
        lambda: Image(revised_prompt=[PRIVATE]),
        "Image.revised_prompt must be str or None, not list.",
    ),
    "audio": (lambda: AudioContent(PRIVATE), "AudioContent.audio must be Audio or None, not str."),
    "audio_url": (lambda: Audio(url=1), "Audio.url must be str or None, not int."),
    "audio_binary_data": (
        lambda: Audio(binary_data=PRIVATE),
        "Audio.binary_data must be bytes or None, not str.",
    ),
    "video": (lambda: VideoContent(Audio()), "VideoContent.video must be Video or None, not Audio."),
    "video_url": (lambda: Video(url=1), "Video.url must be str or None, not int."),
    "pdf_file": (
        lambda: PdfFileContent(PRIVATE),
        "PdfFileContent.pdf_file must be PdfFile or None, not str.",
    ),
    "pdf_file_url": (lambda: PdfFile(url=1), "PdfFile.url must be str or None, not int."),
    "attribute_key": (
        lambda: CustomMessage({"a": [{1: PRIVATE}]}),
        "CustomMessage.attributes['a'][0] has a key of type int; JSON keys must be str.",
    ),
    "attribute_set": (
        lambda: UserMessage("a", attributes={"a": {PRIVATE}}),
        "UserMessage.attributes['a'] is a set, which JSON cannot represent.",
    ),
    "attribute_bytes": (
        lambda: AiMessage("a", attributes={"a": {"b": PRIVATE.encode()}}),
        "AiMessage.attributes['a']['b'] is a bytes, which JSON cannot represent.",
    ),
    "attribute_object": (
        lambda: ToolExecutionResultMessage("1", "t", "4", attributes={"a": object()}),
        "ToolExecutionResultMessage.attributes['a'] is a object, which JSON cannot represent.",
    ),
}
WRONG_VALUES = {
    "no_contents": (lambda: UserMessage([]), "UserMessage.contents is empty; it must have at least one content."),
    "no_contents_of_a_result": (
        lambda: ToolExecutionResultMessage("1", "t", ()),
        "ToolExecutionResultMessage.contents is empty; it must have at least one content.",
    ),
    "result_without_contents": (
        lambda: ToolExecutionResultMessage("1", "t"),
        "ToolExecutionResultMessage.contents is empty; it must have at least one content.",
    ),
    "nan": (
        lambda: CustomMessage({"a": [PRIVATE, float("nan")]}),
        "CustomMessage.attributes['a'][1] is nan, which JSON cannot represent; use a finite number or None.",
    ),
    "infinity": (
        lambda: UserMessage(PRIVATE, attributes={"a": float("inf")}),
        "UserMessage.attributes['a'] is inf, which JSON cannot represent; use a finite number or None.",
    ),
    "minus_infinity": (
        lambda: AiMessage(PRIVATE, attributes={"a": {"b": float("-inf")}}),
        "AiMessage.attributes['a']['b'] is -inf, which JSON cannot represent; use a finite number or None.",
    ),
    "depth": (
        lambda: CustomMessage(nested(MAX_ATTRIBUTE_DEPTH + 1)),
        "CustomMessage.attributes are nested deeper than 100 levels; flatten them.",
    ),
}


class TestInvalidValuesAreRejected:
    """The error names the field and what would be valid, and never repeats the text."""

    @pytest.mark.parametrize(("build", "message"), WRONG_TYPES.values(), ids=WRONG_TYPES.keys())
    def test_an_invalid_type_raises_a_type_error(self, build, message):
        with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
            build()

    @pytest.mark.parametrize(("build", "message"), WRONG_VALUES.values(), ids=WRONG_VALUES.keys())
    def test_an_invalid_value_raises_a_value_error(self, build, message):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            build()

    def test_attributes_that_contain_themselves_are_rejected(self):
        attributes: dict = {}
        attributes["self"] = attributes

        with pytest.raises(ValueError, match=r"^UserMessage\.attributes are nested deeper than 100 levels"):
            UserMessage("a", attributes=attributes)


class TestAttributes:
    def test_attributes_may_nest_a_hundred_levels(self):
        attributes = nested(MAX_ATTRIBUTE_DEPTH)

        assert CustomMessage(attributes).attributes == attributes

    def test_tuples_become_lists_as_in_json(self):
        assert CustomMessage({"a": (1, ("b",))}).attributes == {"a": [1, ["b"]]}

    def test_a_message_accepts_the_attributes_of_another(self):
        first = UserMessage("a", attributes={"k": [1]})

        second = AiMessage("b", attributes=first.attributes)

        assert second.attributes == {"k": [1]}


class TestSubclassesOfPlainTypes:
    """Templates render a ``SafeString``, and numbers may come from NumPy: JSON only has plain types."""

    def test_a_subclass_of_str_becomes_plain_text(self):
        message = UserMessage(mark_safe("<b>"), name=mark_safe("Ann"), attributes={"a": mark_safe("b")})

        assert type(message.single_text) is type(message.name) is type(message.attributes["a"]) is str
        assert message == UserMessage("<b>", name="Ann", attributes={"a": "b"})

    def test_a_subclass_of_a_number_becomes_a_plain_number(self):
        class Celsius(float):
            pass

        message = CustomMessage({"temperature": Celsius(21.5), "level": IntEnum("Level", "LOW").LOW})

        assert [type(value) for value in message.attributes.values()] == [float, int]


def test_a_pdf_without_a_type_is_one():
    assert PdfFile(url="a").mime_type == PdfFile(url="a", mime_type=None).mime_type == "application/pdf"
    assert PdfFile(url="a", mime_type="application/x-pdf").mime_type == "application/x-pdf"
    assert PdfFile(url="a") == PdfFile(url="a", mime_type="application/pdf")


def test_a_result_knows_whether_it_is_a_single_text():
    assert ToolExecutionResultMessage("1", "t", "x").has_single_text
    assert not ToolExecutionResultMessage("1", "t", [TextContent("a"), TextContent("b")]).has_single_text


def test_an_answer_has_the_images_that_the_model_made():
    made = {"url": "https://example.com/a.png", "mimeType": "image/png", "revisedPrompt": "A cat"}

    assert AiMessage("x").images == []
    assert AiMessage("x", attributes={"generated_images": [made]}).images == [
        Image(url="https://example.com/a.png", mime_type="image/png", revised_prompt="A cat")
    ]
