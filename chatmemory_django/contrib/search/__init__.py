"""An app for ``INSTALLED_APPS``: an index of the messages, kept by the database, for ``Message.objects.search()``."""
