"""What is pure Python: no database, no site."""
