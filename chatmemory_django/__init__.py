"""Chat memory for Django: stores every message and selects which ones to send to the LLM."""
