"""The soak on clusters of three nodes, of which any can die: see ``__main__``."""
