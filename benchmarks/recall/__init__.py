"""How often the message that answers a question is among the first that are found."""
