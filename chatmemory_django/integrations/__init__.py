"""Other frameworks' stores of conversations, in the site's database: a module for each framework."""
