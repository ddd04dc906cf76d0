"""Plugins of pytest for the tests of other frameworks; see .ci/frameworks."""
