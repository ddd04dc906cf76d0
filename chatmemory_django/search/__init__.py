"""An app for ``INSTALLED_APPS``: an index of what was said, kept by the database, for ``Message.objects.search()``."""
