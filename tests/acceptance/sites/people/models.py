import uuid

from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.db import models


class People(BaseUserManager):
    def create_user(self, username):
        return self.create(username=username)

    def create_superuser(self, username):
        return self.create(username=username, is_staff=True)


class Person(AbstractBaseUser):
    """The minimum that the admin requires: a name, and all permissions or none."""

    username = models.CharField(max_length=150, unique=True)
    is_staff = models.BooleanField(default=False)

    objects = People()
    USERNAME_FIELD = "username"

    class Meta:
        abstract = True
        swappable = "AUTH_USER_MODEL"

    def has_perm(self, permission, obj=None):
        return self.is_staff

    def has_module_perms(self, app_label):
        return self.is_staff


class UuidUser(Person):
    """A user whose primary key is a UUID."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)


class TextUser(Person):
    """A user whose primary key is the name."""

    username = models.CharField(max_length=150, primary_key=True)
