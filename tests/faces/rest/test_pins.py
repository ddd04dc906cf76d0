"""Pinning messages by REST."""

import pytest

from chatmemory_django.messages import UserMessage
from tests.faces.rest.conftest import ROOT

pytestmark = pytest.mark.django_db


def test_a_message_is_pinned_and_no_longer(writer, begin):
    begin("c", UserMessage("one"), UserMessage("two"))
    address = f"{ROOT}c/messages/1/"

    assert writer.post(f"{address}pin/").json() == {"messages": [1]}
    assert writer.get(address).json()["is_pinned"] is True
    assert writer.delete(f"{address}pin/").json() == {"messages": [1]}
    assert writer.get(address).json()["is_pinned"] is False


def test_what_has_no_room_is_a_conflict_that_gives_the_reason(writer, begin):
    begin("c", *(UserMessage(str(number)) for number in range(1, 41)))
    refused = next(
        response
        for number in range(40, 0, -1)
        if (response := writer.post(f"{ROOT}c/messages/{number}/pin/")).status_code != 200
    )

    assert refused.status_code == 409
    assert refused.json()["type"] == "urn:chatmemory:not_pinned"
    assert "pinned" in refused.json()["detail"]


def test_a_message_that_is_not_there_is_not_found(writer, begin):
    begin("c", UserMessage("one"))

    assert writer.post(f"{ROOT}c/messages/7/pin/").status_code == 404
    assert writer.delete(f"{ROOT}c/messages/x/pin/").status_code == 404
