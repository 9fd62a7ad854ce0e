"""The code-run-code loop: the project's files to the container."""
