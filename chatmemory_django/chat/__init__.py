"""Chatting with an LLM: chat models, assistants with a memory, and the chat over HTTP."""
