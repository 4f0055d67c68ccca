"""The host's end of code sync: compare a workdir with a manifest, receive what is missing, apply it."""
