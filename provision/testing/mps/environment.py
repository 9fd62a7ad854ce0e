"""The environment of daemon, tool and clients: directories, user, GPUs and faults."""

# a process for every command: it starts twice as fast without pathlib:
# ruff: noqa: PTH103, PTH108, PTH110, PTH115, PTH118, PTH123, PTH208

from __future__ import annotations

import contextlib
import os
import socket

TYPE_CHECKING = False  # typing takes as long to import as the rest of this program
if TYPE_CHECKING:
    from typing import Any, TypeAlias

PIPE_LIMIT = 107 - len("/control_privileged")


class MpsEnvironment:
    """The values of the environment variables, with paths below the root of the host or container.

    `pipe_name` and `log_name` are paths on the host, `pipe` and `logs` the same on this machine.
    """

    def __init__(self, state: str | None = None) -> None:
        self.root = os.environ.get("PROVISION_MOCK_ROOT", "")
        self.state = state or os.environ.get("PROVISION_MOCK_STATE", "/run/provision-mock")
        self.pipe_name = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")  # noqa: S108 - the default that NVIDIA names
        self.log_name = os.environ.get("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps")
        self.pipe = self.real(self.pipe_name)
        self.logs = self.real(self.log_name)

    def real(self, path: str) -> str:
        """A host's path on this machine; one below the root stays as it is."""
        return path if self.root and path.startswith(self.root + "/") else self.root + path

    def pipe_file(self, name: str) -> str:
        """The path of a file in the pipe directory."""
        return os.path.join(self.pipe, name)

    def fault(self, name: str) -> bool:
        """True when a test has set this fault."""
        return os.path.exists(f"{self.state}/faults/{name}")

    @property
    def is_root(self) -> bool:
        """True for the user 0 of the host or container."""
        return self.uid == 0

    @property
    def uid(self) -> int:
        """The user id in the host or container."""
        if not self.root:
            return os.geteuid()
        return (
            0
            if os.environ.get("PROVISION_MOCK_SUDO")
            else int(os.environ.get("PROVISION_MOCK_UID", "1000"))
        )

    @property
    def namespace(self) -> str:
        """The PID namespace: the kernel's id and the container that stands for one."""
        try:
            kernel = os.readlink("/proc/self/ns/pid")
        except OSError:
            kernel = ""
        return kernel + os.environ.get("PROVISION_MOCK_PIDNS", "")

    def open_socket(self, name: str, action: str) -> socket.socket:
        """A UNIX socket of the pipe directory; `action` is `bind` or `connect`. Raises `OSError`.

        It uses the bare name: the whole path may exceed the limit for sockets.
        """
        before = os.open(".", os.O_RDONLY)
        try:
            os.chdir(self.pipe)
            found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                getattr(found, action)(name)
            except OSError:
                found.close()
                raise
            return found
        finally:
            os.fchdir(before)
            os.close(before)

    def count_gpus(self) -> int:
        """The number of GPUs with a device node, while the kernel module is loaded."""
        if not os.path.exists(f"{self.state}/module") or not os.path.exists(
            self.root + "/dev/nvidiactl"
        ):
            return 0
        return sum(
            name[6:].isdigit()
            for name in os.listdir(self.root + "/dev")
            if name.startswith("nvidia")
        )

    def _gpu(self, key: str) -> str:
        with contextlib.suppress(OSError), open(f"{self.state}/gpu") as file:
            return (
                dict(line.strip().split("=", 1) for line in file if "=" in line)
                .get(key, "")
                .strip("'\"")
            )
        return ""

    def gpu_name(self) -> str:
        """The GPU's name in nvidia-smi."""
        return self._gpu("GPU_NAME")

    def capability(self) -> tuple[int, int]:
        """The GPU's compute capability."""
        major, _, minor = self._gpu("GPU_CC").partition(".")
        return int(major or 0), int(minor or 0)

    def multiprocessors(self) -> int:
        """The GPU's multiprocessors; 0 where they are unknown."""
        return int(self._gpu("GPU_SMS") or 0)

    def compute_mode(self) -> str:
        """The mode of the first GPU."""
        with contextlib.suppress(OSError), open(f"{self.state}/compute_mode.0") as file:
            return file.read().strip()
        return "Default"

    def gpu_user_pids(self) -> list[int]:
        """Living processes that use the GPU, servers included; removes the files of ended ones."""
        found = []
        for folder in (f"{self.state}/cuda", f"{self.state}/mps-servers"):
            with contextlib.suppress(OSError):
                for name in os.listdir(folder):
                    if os.path.exists(f"/proc/{name}"):
                        found.append(int(name))
                    else:
                        os.unlink(f"{folder}/{name}")
        return found

    def register_server(self, pid: int) -> None:
        """Record that this process is an MPS server."""
        folder = f"{self.state}/mps-servers"
        with contextlib.suppress(OSError):
            os.makedirs(folder, exist_ok=True)
            with open(f"{folder}/{pid}", "w"):
                pass

    def find_libcuda(self) -> str | None:
        """The file that the dynamic linker finds as libcuda.so.1, or None."""
        folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
        with contextlib.suppress(OSError), open(self.root + "/etc/ld.so.conf") as file:
            folders += file.read().split()
        paths = (self.real(folder) + "/libcuda.so.1" for folder in folders)
        return next((path for path in paths if os.path.exists(path)), None)


Message: TypeAlias = "dict[str, Any]"
