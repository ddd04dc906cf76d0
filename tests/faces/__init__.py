"""What programs and people use: the admin, REST, the chat, MCP, commands, adapters; runs on SQLite."""
