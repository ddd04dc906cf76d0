"""Legal holds: conversations, and owners, of whom nothing is erased as long as a hold is active."""
