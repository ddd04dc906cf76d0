#!/usr/bin/env python
"""Runs the commands of the example site."""

import os
import sys

if __name__ == "__main__":
    os.environ.setdefault("DEBUG", "1")  # a server of the site, which runs no commands, has to be asked for it
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
    try:
        from django.core.management import execute_from_command_line  # here, since loading Django can be stopped, too

        execute_from_command_line(sys.argv)
    except KeyboardInterrupt:
        sys.stderr.write("Stopped.\n")
        sys.exit(130)  # as a shell reports what Ctrl-C has ended
