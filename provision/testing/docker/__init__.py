"""The stand-in for docker. Mock hosts run a copy of it, so it imports nothing around it."""
