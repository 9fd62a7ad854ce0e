"""The user's program in the worker container.

`run.py` starts it, streams its output and returns its status. `standard_input.py` does so for a
program that reads the task's standard input. `end.sh` ends it when the connection ends.
"""
