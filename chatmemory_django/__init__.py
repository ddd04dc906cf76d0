"""Chat memory for Django: every message kept, the right ones sent to the LLM."""
