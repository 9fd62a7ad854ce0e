"""Requests to Compute Engine and what it answers."""
