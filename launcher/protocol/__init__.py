"""What the launcher and its agents say to each other, as messages and as bytes; shipped, so stdlib only, Python 3.9."""
