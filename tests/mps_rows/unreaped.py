"""Start and end the control daemon below a parent that does not reap, as without --init."""

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36


def ask(line: str) -> str:
    return subprocess.run(
        ["nvidia-cuda-mps-control"], input=line, capture_output=True, text=True, check=False
    ).stdout


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True)
deadline = time.monotonic() + 10
while not ask("get_default_active_thread_percentage\n") and time.monotonic() < deadline:
    time.sleep(0.1)
daemon = int(Path(f"{sys.argv[1]}/nvidia-cuda-mps-control.pid").read_text())
ask("quit\n")
while state(daemon) != "Z" and time.monotonic() < deadline:
    time.sleep(0.1)
os.kill(daemon, 0)
sys.stdout.write(f"{state(daemon)}, and kill -0 finds it\n")
