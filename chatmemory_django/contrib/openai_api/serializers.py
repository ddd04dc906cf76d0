"""Serializers for requests of OpenAI's clients, with the same validation as OpenAI's."""

from __future__ import annotations

from typing import Any, NamedTuple

from rest_framework import serializers

from chatmemory_django import conf
from chatmemory_django.contrib.openai_api.conversations import CONVERSATION_ITEMS, ItemError, check_item, normalized
from chatmemory_django.core.limits import check_text_length, is_storable
from chatmemory_django.core.media import AddressError, check_json_files
from chatmemory_django.formats.verbatim import to_new_message
from chatmemory_django.messages import NewMessage
from chatmemory_django.models.columns import to_columns
from chatmemory_django.operations.one_by_one import as_kept
from chatmemory_django.rest.fields import Strict, TextField, sentence

MAX_ITEMS = 20
"""Maximum number of items in a request, the same as OpenAI's."""

MAX_PAGE_SIZE = 100
"""Maximum number of items on a page, the same as OpenAI's."""

MAX_PAIRS, MAX_KEY_LENGTH, MAX_VALUE_LENGTH = 16, 64, 512
"""Limits of the metadata of a conversation, the same as OpenAI's."""


class NewItem(NamedTuple):
    """An item that was sent, and the message as which it is stored."""

    item: dict[str, Any]
    new: NewMessage


class ItemField(serializers.Field):
    """An item of a conversation."""

    def to_internal_value(self, data: Any) -> NewItem:
        if not isinstance(data, dict):
            raise serializers.ValidationError("An item must be an object.")
        try:
            check_item(data)
            item = normalized(data)
            message = CONVERSATION_ITEMS.to_message(item)
            to_columns(as_kept(message))
            check_text_length(message, conf.rest().MAX_TEXT_LENGTH)
            view = self.context["view"]
            check_json_files(data, remote=view.policy.may_link_files(view.request))
            return NewItem(item, to_new_message(item, CONVERSATION_ITEMS, "It"))
        except AddressError as exc:
            raise serializers.ValidationError({exc.where: [sentence(exc)]}) from None
        except ItemError as exc:
            raise serializers.ValidationError({exc.param: [str(exc)]}) from None
        except (TypeError, ValueError) as exc:
            raise serializers.ValidationError(str(exc)) from None


class ItemsField(serializers.ListField):
    """The items of one request."""

    child = ItemField()

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(max_length=MAX_ITEMS, **kwargs)

    def run_validators(self, value: Any) -> None:
        super().run_validators(value)
        ids = [new.item["id"] for new in value if "id" in new.item]
        if len(set(ids)) < len(ids):
            raise serializers.ValidationError("Two items have the same id.")


class PairsField(serializers.DictField):
    """The metadata of a conversation: a few strings by key."""

    child = TextField(max_length=MAX_VALUE_LENGTH, allow_blank=True)

    def run_validators(self, value: Any) -> None:
        super().run_validators(value)
        if len(value) > MAX_PAIRS:
            raise serializers.ValidationError(f"It must have at most {MAX_PAIRS} pairs, not {len(value)}.")
        if not all(len(key) <= MAX_KEY_LENGTH and is_storable(key) for key in value):
            raise serializers.ValidationError(
                f"Keys must have at most {MAX_KEY_LENGTH} characters, and no NUL characters."
            )


class NewOpenAIConversationSerializer(Strict, serializers.Serializer[Any]):
    """A new conversation."""

    items = ItemsField(required=False, allow_null=True)
    metadata = PairsField(required=False, allow_null=True)


class NewMetadataSerializer(Strict, serializers.Serializer[Any]):
    """The new metadata of a conversation."""

    metadata = PairsField(allow_null=True)


class NewItemsSerializer(Strict, serializers.Serializer[Any]):
    """Items to add at the end."""

    items = ItemsField(min_length=1)


class IncludeQuery(serializers.Serializer[Any]):
    """The ``include`` parameter, which OpenAI's API has on every request. It is accepted, and ignored."""

    def get_fields(self) -> dict[str, Any]:
        """See ``Serializer``. OpenAI's Python client sends ``include[]``, which cannot be the name of an attribute."""
        names = ("include", "include[]")
        return {
            **super().get_fields(),
            **{name: serializers.CharField(required=False, allow_blank=True) for name in names},
        }


class ItemsQuery(IncludeQuery):
    """Which items to list, and in which order."""

    after = serializers.CharField(required=False)
    limit = serializers.IntegerField(default=MAX_ITEMS, min_value=1, max_value=MAX_PAGE_SIZE)
    order = serializers.ChoiceField(choices=("asc", "desc"), default="desc")
