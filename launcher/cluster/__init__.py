"""From a cluster file to a Cluster of Hosts: read, checked, frozen."""
