"""The page on which users see the notes about them, change and delete each, and switch them off."""
