"""Two more user models. Django creates no table for one that is not in the setting ``AUTH_USER_MODEL``."""
