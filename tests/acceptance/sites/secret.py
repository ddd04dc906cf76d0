"""Fields that store an encrypted value."""

import codecs

from django.apps import AppConfig
from django.db import models
from django.db.models.lookups import IContains


class SecretField(models.TextField):
    """A text, encrypted with Caesar's cipher so that it can be searched."""

    def get_prep_value(self, value):
        value = super().get_prep_value(value)
        return value if value is None else codecs.encode(value, "rot13")

    def from_db_value(self, value, expression, connection):
        return value if value is None else codecs.decode(value, "rot13")


@SecretField.register_lookup
class SecretContains(IContains):
    """A search for the encrypted words."""

    prepare_rhs = True


class SecretConfig(AppConfig):
    """Replaces the fields of messages' texts."""

    name = "tests.acceptance.sites.secret"

    def ready(self):
        from chatmemory_django.models import Message

        for name in ("text", "payload"):
            Message._meta.get_field(name).__class__ = SecretField
