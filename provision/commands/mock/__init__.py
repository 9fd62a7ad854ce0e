"""The embedded mock as a background process."""
