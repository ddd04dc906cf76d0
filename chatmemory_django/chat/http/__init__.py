"""The chat over HTTP: its views, in the protocol of the AI SDK."""
