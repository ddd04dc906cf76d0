"""The conversation with an LLM: models, assistants that have a memory, and the HTTP views of a chat."""
