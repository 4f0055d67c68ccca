"""From agents that say hello to hosts on which processes can start."""
