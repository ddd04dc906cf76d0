"""What the chat adds to a turn, what its streams take, and what disconnected clients leave behind."""
