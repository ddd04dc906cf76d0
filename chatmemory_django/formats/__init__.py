"""Messages in the formats of others."""
