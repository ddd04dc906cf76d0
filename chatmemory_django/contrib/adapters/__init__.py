"""Adapters that store other frameworks' conversations in the site's database, in a module for each framework."""
