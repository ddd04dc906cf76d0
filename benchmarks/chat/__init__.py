"""What the chat adds to a turn, what its streams take, and what clients that drop leave behind."""
