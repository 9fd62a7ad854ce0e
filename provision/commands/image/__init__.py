"""The worker image: rendered, built."""
