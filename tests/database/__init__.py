"""What depends on the database; runs on each of them."""
