"""The records that pydantic-ai keeps with a conversation, in an app that other sites do not need to install."""
