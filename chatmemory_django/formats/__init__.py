"""Conversion of messages from and to the formats of other software."""
