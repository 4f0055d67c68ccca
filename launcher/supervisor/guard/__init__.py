"""Whether all processes hold the rows that they should, by the fingerprints that they tell."""
