"""What a site can do without: nothing outside of a folder names what is in it."""
