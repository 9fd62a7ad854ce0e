"""The Compute Engine API: its client, request bodies, and resources as values of this package."""
