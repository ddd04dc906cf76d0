"""Users as those of cookiecutter-django."""
