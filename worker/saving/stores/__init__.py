"""Where saved steps lie: in a folder that every host mounts, or in a bucket of an object store."""
