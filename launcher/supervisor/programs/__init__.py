"""Whether processes that share devices run the same programs."""
