"""The app's configuration."""

from django.apps import AppConfig


class TelemetryConfig(AppConfig):
    """Configuration of the app, which has no models."""

    name = "chatmemory_django.contrib.telemetry"
    label = "chatmemory_telemetry"

    def ready(self) -> None:
        """Observe what happens from now on."""
        from chatmemory_django.contrib.telemetry import observer  # takes OpenTelemetry
        from chatmemory_django.observing import observers

        if observer not in observers:
            observers.append(observer)
