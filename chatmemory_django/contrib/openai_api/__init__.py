"""OpenAI's Conversations API, over the same conversations."""
