"""Database routers of a site with two databases."""

IN_CHAT = {
    "chatmemory",
    "chatmemory_chat",
    "chatmemory_files",
    "chatmemory_holds",
    "chatmemory_notes",
    "chatmemory_records",
    "example_project",
}


class ByApp:
    """Stores conversations and whatever refers to them in one database, and everything else in the other."""

    def db_for_read(self, model, **hints):
        return "chat" if model._meta.app_label in IN_CHAT else "default"

    db_for_write = db_for_read

    def allow_relation(self, one, another, **hints):
        return True

    def allow_migrate(self, db, app_label, **hints):
        return db == ("chat" if app_label in IN_CHAT else "default")
