"""Sites unlike the example, and the behaviour that is the same on all of them.

A module of settings is a site. The tests here run on the example like any others; ``tests.acceptance.test_sites`` runs
them on these sites, in a process for each.
"""
