"""People of two more kinds. Django has no table for those who are not in the setting ``AUTH_USER_MODEL``."""
