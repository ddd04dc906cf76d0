from django.contrib.auth.models import AbstractUser, UserManager
from django.db import models


class Managers(UserManager):
    def create_superuser(self, email, password=None, **fields):
        return self.create(email=email, is_staff=True, is_superuser=True, **fields)


class User(AbstractUser):
    """A user who signs in by email, without a user name."""

    username = first_name = last_name = None
    name = models.CharField(blank=True, max_length=255)
    email = models.EmailField(unique=True)

    objects = Managers()
    USERNAME_FIELD = "email"
    REQUIRED_FIELDS = ()
