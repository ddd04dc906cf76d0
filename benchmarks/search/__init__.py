"""How long a search takes, and what its index costs."""
