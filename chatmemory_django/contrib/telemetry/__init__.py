"""An app for ``INSTALLED_APPS``: spans and metrics of OpenTelemetry, see ``observer``; it needs the extra ``otel``."""
