"""`python -m provision TASK`: the program itself."""

from __future__ import annotations

from provision.cli.main import main

if __name__ == "__main__":
    main()
