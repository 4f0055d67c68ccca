"""Do all processes hold the rows that they should? What they load is fingerprinted, and compared by the launcher."""
