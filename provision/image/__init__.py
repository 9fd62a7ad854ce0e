"""The worker image: its settings, its Dockerfile and its build context."""
