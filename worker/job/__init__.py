"""The built-in job."""
