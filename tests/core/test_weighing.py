"""How messages are weighed that have some of the words of a question."""

import time

import pytest

from chatmemory_django.core.excerpts import MAX_SEARCH
from chatmemory_django.core.weighing import Weighing, only_asks, words_of

CHATTER = [
    "Good morning, how are you?",
    "The weather is fine today.",
    "Guten Morgen, wie geht es dir?",
    "Das Wetter ist heute schön.",
    "今天天气很好。",
    "今日は天気がいいですね。",
    "Сегодня хорошая погода.",
]


def ranked(question: str, *texts: str) -> list[str]:
    """Return those of *texts* that answer *question*, best first; each is a conversation of its own."""
    written = [(number, 1, text) for number, text in enumerate([*CHATTER, *texts])]
    return [written[conversation][2] for conversation, _ in Weighing(question, written).best(20)]


class TestWords:
    @pytest.mark.parametrize(
        ("question", "words"),
        [
            ("Where did I park the car?", ["park", "car"]),
            ("Wo steht das Fahrrad von Jörg?", ["steht", "fahrrad", "jörg"]),
            ("foo_bar, C++ and 3.14", ["foo", "bar", "c", "3", "14"]),
            ("東京タワー", ["東京", "京タ", "タワ", "ワー"]),
            ("鍵", ["鍵"]),
            ("Tokyo東京", ["tokyo", "東京"]),
            ("किताब कहाँ", ["किताब", "कहाँ"]),
            ("מַפְתֵּחַ", ["מַפְתֵּחַ"]),
            ("Who are you?", ["who", "are", "you"]),
            ("car CAR Car", ["car"]),
            ("?!", []),
            ("", []),
        ],
    )
    def test_they_are_those_that_are_not_very_common(self, question, words):
        assert words_of(question) == words

    def test_their_number_is_limited(self):
        assert len(words_of(" ".join(map(str, range(1_000))))) == 24


class TestMatches:
    @pytest.mark.parametrize(
        ("question", "text"),
        [
            ("When did I sell my bicycle?", "The bicycles are sold."),
            ("Which ALLERGIES do I have?", "I am allergic to hazelnuts."),
            ("Wie heißen meine Katzen?", "Die Katze heißt Mimi."),
            ("Wo ist der Schlüssel?", "Den Autoschlüssel hat Paula."),
            ("Wo ist mein Fahrradschloss?", "Das Schloss liegt im Keller."),
            ("Wo ist mein Fahrradschloss?", "Mein Fahrrad steht im Keller."),
            ("strasse", "Straße 7"),
            ("zurich", "Zürich im Mai"),
            ("Où est le café préféré ?", "Mon cafe prefere est en face."),
            ("Где мои ключи?", "Ключ лежит на столе."),
            ("أين مفتاح", "المفتاح على الطاولة"),
            ("किताब", "मेरी किताबें मेज़ पर हैं"),
            ("車の鍵はどこですか", "鍵は玄関の棚にあります。車の中ではありません。"),
            ("我的护照在哪里\uff1f", "护照放在书桌的抽屉里。"),
            ("열쇠 어디", "열쇠는 서랍에 있어요"),
            ("กุญแจอยู่ที่ไหน", "กุญแจรถอยู่ในลิ้นชัก"),
            ("\uff21\uff22\uff23", "abc"),
        ],
    )
    def test_another_form_of_a_word_is_found_before_chatter(self, question, text):
        assert ranked(question, text)[0] == text

    def test_a_text_without_any_of_the_words_is_not_found(self):
        assert ranked("zyxomatic hazelnuts", "I eat nuts", "matic", "scar", "") == []
        assert ranked("a car", "The scar is carved.") == []  # a short word is found as a whole
        assert ranked("", "car") == []


class TestWeights:
    def test_a_rare_word_weighs_more_than_common_ones(self):
        texts = ["my garden is fine today", *["my garden is big"] * 5, "the code is 4711"]

        assert ranked("What is the code of my garden today?", *texts)[0] == "the code is 4711"

    def test_more_of_the_words_weigh_more_than_one_of_them_repeated(self):
        assert ranked("blue parcel", "parcel parcel parcel parcel", "a parcel, blue")[0] == "a parcel, blue"

    def test_a_shorter_text_and_the_word_itself_come_first(self):
        texts = ["parcel " + "and so on " * 50, "parcels", "parcel"]

        assert ranked("parcel", *texts) == ["parcel", "parcels", texts[0]]

    def test_of_equal_ones_the_newer_comes_first(self):
        assert list(Weighing("car", [(1, 1, "a car"), (1, 9, "x"), (2, 5, "a car")]).best(9)) == [(2, 5), (1, 1)]

    def test_a_word_that_every_message_has_still_finds(self):
        assert set(Weighing("car", [(1, 1, "car"), (2, 1, "car")]).best(9)) == {(1, 1), (2, 1)}

    def test_a_fifth_of_the_weight_of_a_neighbour_counts(self):
        alone = Weighing("car wash", [(1, 1, "the car"), (2, 1, "the wash"), (3, 1, "x")]).best(9)
        beside = Weighing("car wash", [(1, 1, "the car"), (1, 2, "the wash"), (3, 1, "x")]).best(9)

        assert beside[1, 1] == pytest.approx(alone[1, 1] + alone[2, 1] / 5)
        assert beside[1, 2] == pytest.approx(alone[2, 1] + alone[1, 1] / 5)

    def test_messages_beyond_are_weighed_by_the_same_rarity(self):
        written = [(number, 1, "the car") for number in range(10)] + [(10, 1, "a key")]

        best = Weighing("car key", written).best(3, [(20, 1, "another key"), (21, 1, "car")])

        assert list(best) == [(10, 1), (20, 1), (21, 1)]


class TestQuestions:
    @pytest.mark.parametrize(
        ("text", "asks"),
        [
            ("Where is it?", True),
            (" Where is it??\n", True),
            ("车在哪里\uff1f", True),
            ("你是中国人吗", True),
            ("鍵はどこですか。", True),
            ("أين المفتاح؟", True),
            ("It is here. Is it not?", False),
            ("Is it? Yes.", False),
            ("It is here.", False),
            ("", False),
        ],
    )
    def test_a_text_that_only_asks(self, text, asks):
        assert only_asks(text) is asks

    def test_a_question_that_was_asked_before_comes_after_what_answers_it(self):
        question = "Which code had the garage door?"
        written = [
            (1, 1, "By the way, the garage opens with the code 4711."),
            (2, 1, question),
            (2, 2, "I do not know it."),
            *((number, 1, text) for number, text in enumerate(CHATTER, 3)),
        ]

        assert next(iter(Weighing(question, written).best(9))) == (1, 1)

    def test_what_follows_a_question_is_found_by_its_words(self):
        written = [(1, 1, "What is the code of your garage?"), (1, 2, "4711"), (2, 1, "Hello")]

        assert next(iter(Weighing("garage code", written).best(9))) == (1, 2)


def test_ten_thousand_messages_take_a_fraction_of_a_second():
    written = [(number // 10, number % 10, f"{CHATTER[number % 7]} {number}") for number in range(10_000)]
    begun = time.process_time()

    Weighing("Where did I write that the weather was fine in the garden of number 4711?", written).best(100)

    assert time.process_time() - begun < 5


@pytest.mark.parametrize("text", ["a" * 10_000, "a?" * 5_000, "ab " * 5_000, "か" * 10_000, "?" * 10_000, " " * 10_000])
def test_no_text_takes_long(text):
    begun = time.process_time()

    Weighing(text, [(1, 1, text)]).best(1)

    assert time.process_time() - begun < 5


@pytest.mark.parametrize("letter", ["\ufdfa", "\u2474", "\u2488", "a", "\u0e01"])
def test_no_question_takes_long(letter):
    """U+FDFA is folded to 18 characters, and U+2474 to a digit in brackets."""
    begin = time.process_time()

    Weighing(letter * MAX_SEARCH, [(1, 1, letter * 20)]).best(1)

    assert time.process_time() - begin < 5  # without a bound, 25


def test_a_word_that_is_too_long_for_a_compound_has_no_parts():
    """In ten thousand texts of such words, all parts of one of 255 letters took half a minute."""
    written = [(1, 1, "x" * 30)]

    assert Weighing("x" * 64, written).best(1)
    assert not Weighing("x" * 65, written).best(1)
