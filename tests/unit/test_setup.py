"""The set-up script: which Python it chooses, and its messages when there is none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

MAKE_VENV = Path(__file__).parents[2] / ".ci" / "make-venv"

SHIM = "#!/bin/sh\necho 'no version set' >&2\nexit 127\n"
OLD = "#!/bin/sh\ncase $2 in *version_info*) exit 1 ;; esac\nexit 99\n"
NO_VENV = "#!/bin/sh\ncase $2 in *ensurepip*) exit 1 ;; *python%d*) echo python3.12-venv ;; esac\n"
GOOD = '#!/bin/sh\ncase $1 in --version) echo Python 3.12.9 ;; -m) echo "$0 $*" >"$LOG" ;; esac\n'


class Machine:
    """A machine whose PATH holds the given interpreters, beside the usual tools."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"

    def add(self, name: str, source: str) -> None:
        (self.folder / name).write_text(source)
        (self.folder / name).chmod(0o755)

    def make_venv(self, python: str | None = None) -> subprocess.CompletedProcess[str]:
        given = {} if python is None else {"PYTHON": python}
        # The usual tools are builtins: nothing else is needed, and no Python of this very machine
        # is found.
        environment = {"PATH": str(self.folder), "LOG": str(self.log), **given}
        return subprocess.run(
            ["/bin/sh", MAKE_VENV, "the venv"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_shim_and_old_python_are_skipped(machine: Machine) -> None:
    machine.add("python3.14", SHIM)
    machine.add("python3.12", NO_VENV)
    machine.add("python3.11", OLD)
    machine.add("python3", GOOD)
    done = machine.make_venv()
    assert (done.returncode, done.stderr) == (0, "setting up the venv with Python 3.12.9\n")
    assert machine.log.read_text().endswith("/python3 -m venv --clear the venv\n")


def test_newest_python_is_chosen(machine: Machine) -> None:
    for name in ("python3", "python3.12", "python3.13"):
        machine.add(name, GOOD)
    assert machine.make_venv().returncode == 0
    assert machine.log.read_text().endswith("/python3.13 -m venv --clear the venv\n")


def test_missing_python_is_reported(machine: Machine) -> None:
    machine.add("python3", OLD)
    done = machine.make_venv()
    assert done.returncode == 1
    assert done.stderr.startswith(
        "no Python >= 3.11 found "
        "(looked for: python3.14 python3.13 python3.12 python3.11 python3).\n"
    )
    assert "try: make PYTHON=" in done.stderr


def test_python_without_venv_names_the_package_to_install(machine: Machine) -> None:
    machine.add("python3.12", NO_VENV)
    done = machine.make_venv()
    assert done.returncode == 1
    assert done.stderr.startswith("python3.12 has no venv module with pip in it.\n")
    assert "apt-get install python3.12-venv" in done.stderr


def test_requested_python_is_the_only_one_tried(machine: Machine) -> None:
    machine.add("python3.13", GOOD)
    machine.add("mine", OLD)
    done = machine.make_venv("mine")
    assert (done.returncode, machine.log.exists()) == (1, False)
    assert "looked for: mine" in done.stderr
