import chatmemory_django.models
import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [("chatmemory", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="MediaFile",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "created_at",
                    models.DateTimeField(default=django.utils.timezone.now, editable=False, verbose_name="created at"),
                ),
                ("size", models.PositiveBigIntegerField(verbose_name="size")),
                (
                    "owner",
                    chatmemory_django.models.ExactCharField(
                        blank=True, default="", max_length=255, verbose_name="owner"
                    ),
                ),
                ("sha256", models.CharField(max_length=64, verbose_name="SHA-256")),
                ("name", models.CharField(max_length=128, unique=True, verbose_name="name")),
                ("key_id", models.CharField(blank=True, default="", max_length=64, verbose_name="key")),
            ],
            options={
                "verbose_name": "file",
                "verbose_name_plural": "files",
                "default_permissions": (),
                "constraints": [models.UniqueConstraint(fields=("owner", "sha256"), name="chatmemory_file_of_owner")],
            },
        ),
        migrations.CreateModel(
            name="MediaDeletion",
            fields=[
                (
                    "name",
                    models.CharField(max_length=128, primary_key=True, serialize=False, verbose_name="name"),
                ),
                (
                    "since",
                    models.DateTimeField(default=django.utils.timezone.now, editable=False, verbose_name="since"),
                ),
                (
                    "owner",
                    chatmemory_django.models.ExactCharField(
                        blank=True, default="", max_length=255, verbose_name="owner"
                    ),
                ),
                ("conversation", models.BigIntegerField(null=True, verbose_name="conversation")),
            ],
            options={
                "verbose_name": "file to delete",
                "verbose_name_plural": "files to delete",
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="MediaReference",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "conversation_id",
                        "sequence",
                        "file_id",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("sequence", models.PositiveIntegerField(verbose_name="sequence")),
                (
                    "conversation",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="chatmemory.conversation",
                    ),
                ),
                (
                    "file",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="references",
                        to="chatmemory_files.mediafile",
                    ),
                ),
            ],
            options={
                "verbose_name": "reference to a file",
                "verbose_name_plural": "references to files",
                "default_permissions": (),
            },
        ),
    ]
