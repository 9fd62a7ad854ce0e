"""Runs the stock `invoke` or our `provision` with provision.app replaced: `python launch.py invoke WORD…`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import provision

if __name__ == "__main__":
    sys.path.pop(0)
    fake = type(sys)("provision.app")
    fake.__path__ = [str(Path(provision.__file__).parent / "app")]
    sys.modules["provision.app"] = fake
    vars(fake).update(runpy.run_path(str(Path(__file__).with_name("fake_app.py"))))
    provision.app = fake
    sys.argv = sys.argv[1:]
    if sys.argv[0] == "invoke":
        from invoke.main import program

        program.run()
    else:
        from provision.__main__ import main

        main()
