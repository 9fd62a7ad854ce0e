"""The worker container, and the same program in it several times."""
