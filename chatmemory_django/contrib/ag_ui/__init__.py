"""A face of the chat in the AG-UI protocol, for CopilotKit and other clients of it, on the same runs and streams."""
