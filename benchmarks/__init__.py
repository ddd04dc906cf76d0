"""Speed, size and correctness of the memory, compared with SQL written by hand and with its peers; see README.md."""
