"""What is stored instead of a text, and what of it is found to be changed. See docs/encryption.md."""

import base64
import os
import re

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from chatmemory_django.contrib.encryption.keys import Keys, new_key, parse
from chatmemory_django.contrib.encryption.values import (
    EncryptionError,
    MissingKeyError,
    decrypt,
    decrypt_all,
    encrypt,
    key_id_of,
    to_key,
)
from chatmemory_django.db.row_codec import looks_encoded

DATA = bytes(range(32))
KEY = to_key("a1", DATA)
SECRET = "a text of somebody"
BASE64 = base64.b64encode(DATA).decode()


class TestFormat:
    def test_it_is_aes_256_gcm_whose_associated_data_is_all_that_stands_before_it(self):
        value = encrypt(SECRET, KEY, "chatmemory.message.text:7:1:USER")

        assert re.fullmatch(r"enc2:a1:chatmemory.message.text:7:1:USER:[A-Za-z0-9+/]+={0,2}", value)
        head, _, encoded = value.rpartition(":")
        data = base64.b64decode(encoded)
        assert AESGCM(DATA).decrypt(data[:12], data[12:], f"{head}:".encode()) == SECRET.encode()

    def test_one_of_an_earlier_version_is_bound_to_its_column_alone(self):
        data = bytes(12) + AESGCM(DATA).encrypt(bytes(12), SECRET.encode(), b"chatmemory.message.text:a1")
        value = f"enc1:a1:{base64.b64encode(data).decode()}"

        assert decrypt(value, KEY, "chatmemory.message.text:7:1:USER") == SECRET
        with pytest.raises(EncryptionError):
            decrypt(value, KEY, "chatmemory.message.payload:7:1:USER")

    @given(st.text(max_size=200))
    def test_any_text_comes_back(self, text):
        value = encrypt(text, KEY, "c")

        assert decrypt(value, KEY, "c") == text
        assert looks_encoded(value)
        assert key_id_of(value) == "a1"

    @given(st.lists(st.text(max_size=50), min_size=1, max_size=5))
    def test_many_come_back_as_each_does(self, texts):
        places = [f"c:7:{sequence}:AI" for sequence in range(len(texts))]
        values = [encrypt(text, KEY, place) for text, place in zip(texts, places, strict=True)]

        assert decrypt_all(values, KEY, [f"enc2:a1:{place}:" for place in places]) == texts

    def test_the_length_of_a_text_is_known_and_nothing_else(self):
        values = [encrypt(text, KEY, "c") for text in ("yes", "yes", "no!")]

        assert len(set(values)) == 3
        assert len({len(value) for value in values}) == 1

    @pytest.mark.slow
    def test_no_nonce_is_used_twice_in_a_million(self):
        head = len("enc2:a1:c:")

        nonces = {encrypt("", KEY, "c")[head : head + 16] for _ in range(1_000_000)}

        assert len(nonces) == 1_000_000

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "enc1",
            "enc1:",
            "enc1:a1",
            "enc1:a1:",
            "enc1:a1:not Base64",
            "enc1:a1:c2hvcnQ=",
            "ENC2:a1:" + BASE64,
            "enc2:a1:c:",
        ],
    )
    def test_a_text_that_only_begins_like_a_value_is_none(self, text):
        assert not looks_encoded(text)


class TestChanged:
    @given(st.integers(min_value=0), st.integers(0, 7))
    def test_any_flipped_bit(self, place, bit):
        head, _, encoded = encrypt(SECRET, KEY, "c").rpartition(":")
        data = bytearray(base64.b64decode(encoded))
        data[place % len(data)] ^= 1 << bit

        with pytest.raises(EncryptionError, match="changed, truncated or moved"):
            decrypt(f"{head}:{base64.b64encode(data).decode()}", KEY, "c")

    def test_any_character_replaced_or_left_out(self):
        value = encrypt(SECRET, KEY, "c")
        for place in range(len("enc2:a1:c:"), len(value)):
            for changed in (
                value[:place] + value[place + 1 :],
                value[:place] + "-" + value[place + 1 :],
                value[:place],
            ):
                with pytest.raises(EncryptionError):
                    decrypt(changed, KEY, "c")

    def test_another_column(self):
        with pytest.raises(EncryptionError, match=r"A value of c\.payload is not what was encrypted there"):
            decrypt(encrypt(SECRET, KEY, "c.text"), KEY, "c.payload")

    def test_another_key_with_the_same_id(self):
        with pytest.raises(EncryptionError):
            decrypt(encrypt(SECRET, KEY, "c"), to_key("a1", os.urandom(32)), "c")

    def test_the_same_key_with_another_id(self):
        renamed = encrypt(SECRET, KEY, "c").replace("enc2:a1:", "enc2:b2:")

        with pytest.raises(EncryptionError):
            decrypt(renamed, to_key("b2", DATA), "c")

    @pytest.mark.parametrize(
        "change", ["flipped", "truncated", "swapped", "moved", "without its head", "of another key"]
    )
    def test_one_of_many(self, change):
        heads = [f"enc2:a1:c:7:{sequence}:USER:" for sequence in (1, 2, 3)]
        values = [encrypt(SECRET, KEY, head[len("enc2:a1:") : -1]) for head in heads]
        assert decrypt_all(values, KEY, heads) == [SECRET] * 3
        values[1:] = {
            "flipped": [values[1][:-9] + ("A" if values[1][-9] != "A" else "B") + values[1][-8:], values[2]],
            "truncated": [values[1][:-4], values[2]],
            "swapped": [values[2], values[1]],
            "moved": [values[2].replace(":3:", ":2:"), values[2]],
            "without its head": [values[1].removeprefix(heads[1]), values[2]],
            "of another key": [encrypt(SECRET, to_key("b2", DATA), "c:7:2:USER"), values[2]],
        }[change]

        with pytest.raises(EncryptionError, match="A value of c is not what was encrypted there"):
            decrypt_all(values, KEY, heads)

    def test_an_error_has_neither_text_nor_key(self):
        with pytest.raises(EncryptionError) as raised:
            decrypt(encrypt(SECRET, KEY, "c") + "A", KEY, "c")

        assert SECRET not in str(raised.value)
        assert BASE64 not in str(raised.value)


class TestKeys:
    def test_a_new_one_has_an_id_and_32_random_bytes(self):
        keys = [parse(new_key()) for _ in range(100)]

        assert {len(data) for _, data in keys} == {32}
        assert len({key_id for key_id, _ in keys}) == 100
        assert len({data for _, data in keys}) == 100

    @pytest.mark.parametrize(
        ("key", "problem"),
        [
            (None, "must be a str, '<id>:<Base64>', not NoneType"),
            (BASE64, "must begin with an id"),
            (f":{BASE64}", "must begin with an id"),
            (f"a b:{BASE64}", "must begin with an id"),
            (f"{'a' * 41}:{BASE64}", "must begin with an id of at most 40"),
            (f"@a:{BASE64}", "must begin with an id"),
            (f"é:{BASE64}", "must begin with an id"),
            ("a:", "must have 32 bytes, not 0"),
            (f"a:{BASE64[:-4]}", "must be Base64|must have 32 bytes, not 30"),
            (f"a: {BASE64}", "must be Base64"),
            (f"a:{BASE64}\n", "must be Base64"),
            (f"a:{base64.b64encode(bytes(16)).decode()}", "must have 32 bytes, not 16"),
        ],
    )
    def test_one_that_is_wrong_is_refused_without_repeating_it(self, key, problem):
        with pytest.raises(ValueError, match=problem) as raised:
            parse(key)

        assert BASE64[:20] not in str(raised.value)
        assert raised.value.__context__ is None or BASE64[:20] not in str(raised.value.__context__)

    def test_the_first_one_encrypts_and_all_decrypt(self):
        keys = Keys([f"new:{BASE64}", f"old:{base64.b64encode(bytes(32)).decode()}"])

        assert keys.current().id == "new"
        assert keys.get("old").id == "old"
        assert keys.get("other") is None

    def test_no_key_is_shown_in_a_repr(self):
        keys = Keys([f"a1:{BASE64}"])

        for shown in (repr(keys), repr(keys.current()), str(keys.__dict__), f"{keys.current()!s}"):
            assert BASE64 not in shown
            assert repr(DATA)[2:40] not in shown
            assert DATA.hex() not in shown

    def test_the_key_of_an_owner_is_wrapped_by_the_first_one_and_unwrapped_by_any(self):
        old = Keys([f"old:{BASE64}"])
        both = Keys([new_key(), f"old:{BASE64}"])
        wrapped = old.wrap(b"k" * 32, owner="7")

        assert wrapped.startswith(old.wrapped_now())
        assert not wrapped.startswith(both.wrapped_now())
        assert both.unwrap(wrapped, owner="7") == b"k" * 32
        with pytest.raises(MissingKeyError, match="'old'"):
            Keys([new_key()]).unwrap(wrapped, owner="7")
