"""The same program several times at once (`--clients`), as clients that share the GPU.

`run.py` starts and ends them, `output.py` and `lines.py` separate what they print, `result.py` is
the document and the table.
"""
