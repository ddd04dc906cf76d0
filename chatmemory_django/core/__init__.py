"""The rules: what stays in a memory, what follows what, and what can be stored. Pure Python, without I/O."""
