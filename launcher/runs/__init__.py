"""Commands about runs that are there already, started from any terminal of this user."""
