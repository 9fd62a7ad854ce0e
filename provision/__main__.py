"""The program, `provision TASK` or `python -m provision TASK`: nothing is imported before Ctrl-C has its answer."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the program on the process's own command line and exit."""
    try:
        from provision.cli.main import main as run

        run()
    except KeyboardInterrupt:
        from provision.cli.output import interrupted

        sys.exit(interrupted("provision"))


if __name__ == "__main__":
    main()
