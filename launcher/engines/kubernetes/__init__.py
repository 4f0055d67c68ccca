"""Kubernetes as an engine: pods, one a host."""
