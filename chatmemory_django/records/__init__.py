"""What pydantic-ai keeps of a conversation beside its messages, in an app that other sites do without."""
