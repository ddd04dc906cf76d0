"""Backends of other engines, as packages of others have them: their server is the real PostgreSQL of the tests."""
