import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [("chatmemory", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="OwnerKey",
            fields=[
                ("id", models.CharField(max_length=40, primary_key=True, serialize=False)),
                ("owner", models.CharField(max_length=255)),
                ("number", models.PositiveIntegerField(default=1)),
                ("wrapped", models.TextField()),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("owner", "number"), name="chatmemory_encryption_ownerkey_number")
                ],
            },
        ),
        migrations.CreateModel(
            name="Origin",
            fields=[
                (
                    "conversation",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="+",
                        serialize=False,
                        to="chatmemory.conversation",
                    ),
                ),
                ("text", models.TextField()),
            ],
            options={"default_permissions": ()},
        ),
    ]
