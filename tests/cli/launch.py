"""Runs `invoke` or `provision` with fake use cases: `python launch.py invoke WORD…`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.pop(0)
    fakes = runpy.run_path(str(Path(__file__).with_name("fakes.py")))
    sys.modules.update(fakes["fake_modules"]())
    sys.argv = sys.argv[1:]
    if sys.argv[0] == "invoke":
        from invoke.main import program

        program.run()
    else:
        from provision.__main__ import main

        main()
