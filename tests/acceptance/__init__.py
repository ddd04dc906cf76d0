"""The whole: the documentation, the example site, other sites, browsers, live servers and clients of others."""
