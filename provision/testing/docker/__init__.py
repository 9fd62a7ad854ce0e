"""The docker stand-in. It imports nothing of the package around it: a mock host runs a copy with an isolated interpreter."""
