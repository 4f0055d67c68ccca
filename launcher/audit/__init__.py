"""Was every record used exactly once, over all attempts? Recounted at the end of a run, from its events alone."""
