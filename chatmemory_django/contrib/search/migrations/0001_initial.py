from django.db import migrations

from chatmemory_django.contrib.search.migrating import BuildIndex


class Migration(migrations.Migration):
    initial = True

    atomic = False  # PostgreSQL builds indexes concurrently only outside of transactions

    dependencies = [("chatmemory", "0001_initial")]

    operations = [BuildIndex()]
