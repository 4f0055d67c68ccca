"""What an agent sees of its processes from outside: how far they are, where they wait, what they hold."""
