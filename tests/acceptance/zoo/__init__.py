"""
Sites that others begin with, each in a process of its own, and the same requests to all of them.

``sites`` has the settings of each, ``visits`` the requests. A new site is an entry in ``SITES``.
"""
