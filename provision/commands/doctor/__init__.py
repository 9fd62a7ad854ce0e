"""`doctor`: checks before money is spent."""
