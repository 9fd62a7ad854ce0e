"""The program `provision TASK` or `python -m provision TASK`; Ctrl-C is handled from the start."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the program on the process's command line and exit."""
    try:
        from provision.cli.main import main as run

        run()
    except KeyboardInterrupt:
        from provision.cli.output import report_interrupt

        sys.exit(report_interrupt("provision"))


if __name__ == "__main__":
    main()
