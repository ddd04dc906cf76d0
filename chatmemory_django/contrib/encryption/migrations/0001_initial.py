from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="OwnerKey",
            fields=[
                ("id", models.CharField(max_length=40, primary_key=True, serialize=False)),
                ("owner", models.CharField(max_length=255, unique=True)),
                ("wrapped", models.TextField()),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
        ),
    ]
