"""The process of the background mock: `python -m provision.testing.background_server --state DIR`.

It writes `mock.json` (PID, endpoint, SSH ports, version) while it serves. It ends on SIGTERM, or
after thirty minutes without a request or an SSH connection.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from provision.core.files import SHARED, write_atomically
from provision.testing.background import RECORD, version
from provision.testing.mock_cloud import MockCloud
from provision.testing.process_start import start_ticks

IDLE_S = 30 * 60.0
_POLL_S = 0.5


class Server:
    """One mock cloud, its record, and its idle time limit."""

    def __init__(self, folder: Path, idle_s: float) -> None:
        self.folder = folder
        self.idle_s = idle_s
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._last_activity = time.monotonic()
        self._last_call: Any = None
        self.cloud = self._open()
        self.cloud.on_change = self._write_record
        self.cloud.hosts.on_activity = self._touch

    def _open(self) -> MockCloud:
        """The started cloud, on the port of the last run if it is free."""
        known = self.folder / "endpoint-port"
        if known.exists():
            cloud = MockCloud(self.folder, port=int(known.read_text()))
            try:
                return cloud.start()
            except (OSError, SystemExit):  # the port is taken
                pass
        cloud = MockCloud(self.folder).start()
        known.write_text(cloud.endpoint.rpartition(":")[2])
        return cloud

    def _touch(self) -> None:
        self._last_activity = time.monotonic()

    def _write_record(self) -> None:
        record = {
            "pid": os.getpid(),
            "started": start_ticks(os.getpid()),
            "version": version(),
            "compute_endpoint": self.cloud.endpoint,
            "ssh_ports": self.cloud.ssh_ports,
            "spawners": [
                host.processes.spawner_pid for host in list(self.cloud.hosts.running.values())
            ],
        }
        with self._lock:
            write_atomically(self.folder / RECORD, json.dumps(record), mode=SHARED)

    def run(self) -> None:
        """Serve until a signal arrives or the idle time is over."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self._stop.set())
        self._write_record()
        try:
            while not self._stop.wait(min(_POLL_S, self.idle_s)):
                if self._is_idle():
                    break
        finally:
            self.cloud.stop()
            (self.folder / RECORD).unlink(missing_ok=True)

    def _is_idle(self) -> bool:
        calls = self.cloud.emulator.calls
        latest = calls[-1] if calls else None
        connected = any(
            host.server.open_connections for host in list(self.cloud.hosts.running.values())
        )
        if latest is not self._last_call or connected:
            self._last_call = latest
            self._touch()
        return time.monotonic() - self._last_activity >= self.idle_s


def main(words: list[str] | None = None) -> int:
    """Run the server in the foreground."""
    parser = argparse.ArgumentParser(prog="provision.testing.background_server")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--idle-s", type=float, default=IDLE_S)
    options = parser.parse_args(words)
    options.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    Server(options.state.resolve(), options.idle_s).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
