"""From blocks of rows on the host to global arrays on the devices."""
