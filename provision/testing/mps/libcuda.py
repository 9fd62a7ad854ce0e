"""The stand-in for libcuda, as far as MPS needs it.

A program attaches to a daemon that it reaches, or runs without one. The results were observed on
driver 580 or are from the CUDA headers; see docs/facts.md. It computes and measures nothing: its
only device attribute is the number of usable multiprocessors, others are not supported (801).
"""

# what every program of a container loads:
# ruff: noqa: N802, PTH103, PTH108, PTH112, PTH120, PTH123

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import socket
import sys

from .client_limits import (
    context_bytes,
    limits_by_device,
    lowest_limits,
    parse_limits_variable,
    usable_multiprocessors,
)
from .environment import MpsEnvironment

TYPE_CHECKING = False  # typing takes as long to import as the rest of this program
if TYPE_CHECKING:
    from typing import Any

MULTIPROCESSORS = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
OUT_OF_MEMORY = 2
UNAVAILABLE = 46
NO_DEVICE = 100
INVALID_DEVICE = 101
INVALID_CONTEXT = 201
ILLEGAL_ADDRESS = 700
NOT_SUPPORTED = 801
RPC_FAILURE = 806


def load(name: str) -> Any:
    """The stand-in, or None for a real library. Raises `OSError` without either."""
    environment = MpsEnvironment()
    path = environment.find_libcuda()
    if path is None:
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")
    with open(path, "rb") as file:
        if file.read(4) == b"\x7fELF":
            return None
    lab_state = f"{os.path.dirname(path)}/.lab"
    return Cuda(MpsEnvironment(state=lab_state) if os.path.isdir(lab_state) else environment)


class Context:
    """A context of a device and its size in bytes, allocations included."""

    def __init__(self, device: str, size: int) -> None:
        self.device = device
        self.size = size


class Cuda:
    """The driver API of one process, called with ctypes arguments; it writes through `byref`."""

    def __init__(self, environment: MpsEnvironment) -> None:
        self._environment = environment
        self._server: socket.socket | None = None
        self._sticky = 0
        self._multiprocessors: int | None = None
        self._limits: dict[str, int] = {}
        self._contexts: list[Context] = []
        self._devices: list[str] = []
        self._held: list[int] = []

    # --- the driver API ---

    def cuInit(self, flags: int) -> int:
        """Attach to a daemon if one answers; wait while a server of another user has clients."""
        del flags
        try:
            self._held.append(os.open(self._environment.root + "/dev/nvidia-uvm", os.O_RDONLY))
        except OSError:
            return NO_DEVICE
        present = [gpu_uuid(number) for number in range(self._environment.count_gpus())]
        percentage = 100.0
        self._server = self._connect()
        if self._server is not None:
            answer = self._attach()
            if answer.get("code"):
                return int(answer["code"])
            present = [device for device in present if device in answer["devices"]]
            percentage = _effective_percentage(float(answer["percentage"]))
        total = self._environment.multiprocessors()
        self._multiprocessors = (
            usable_multiprocessors(total, percentage, self._environment.capability())
            if total
            else None
        )
        self._devices = visible_devices(present, os.environ.get("CUDA_VISIBLE_DEVICES"))
        if self._server is not None:
            self._limits = lowest_limits(
                answer["limits"],
                limits_by_device(
                    parse_limits_variable(os.environ.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "")),
                    self._devices,
                ),
            )
        if not self._devices:
            return NO_DEVICE
        self._register()
        return 0

    def cuDriverGetVersion(self, version: Any) -> int:
        """Not supported: only nvidia-smi shows the mock's driver version."""
        del version
        return NOT_SUPPORTED

    def cuDeviceGetCount(self, count: Any) -> int:
        """The number of devices that this process sees."""
        _set(count, len(self._devices))
        return 0

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:
        """A device by its number."""
        if not 0 <= ordinal < len(self._devices):
            return INVALID_DEVICE
        _set(device, ordinal)
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:
        """The number of usable multiprocessors; other attributes fail."""
        del device
        if attribute != MULTIPROCESSORS or self._multiprocessors is None:
            return NOT_SUPPORTED
        _set(value, self._multiprocessors)
        return 0

    def cuCtxCreate_v2(self, context: Any, flags: int, device: Any) -> int:
        """A context of the server, or without one a context that the compute mode permits."""
        del flags
        if self._sticky:
            return self._sticky
        created = self._new_context(_number(device))
        if isinstance(created, int):
            return created
        code = (
            int(self._request({"context": True})["code"])
            if self._server is not None
            else self._without_server()
        )
        if code == 0:
            self._contexts.append(created)
            _set(context, 1)
        return code

    def cuCtxSynchronize(self) -> int:
        """0, or a sticky error: 806 server ended, 810 terminated, 700 a client's fault."""
        self._receive_notice()
        return self._sticky

    def cuMemAlloc_v2(self, pointer: Any, size: Any) -> int:
        """Allocate `size` bytes, an int or a ctypes integer, in the last context."""
        self._receive_notice()
        if self._sticky:
            return self._sticky
        if not self._contexts:
            return INVALID_CONTEXT
        wanted = _number(size)
        if not self._fits(self._contexts[-1].device, wanted):
            return OUT_OF_MEMORY
        self._contexts[-1].size += wanted
        _set(pointer, 1)
        return 0

    def cuMemsetD8_v2(self, pointer: Any, value: Any, count: Any) -> int:
        """Return what `cuCtxSynchronize` returns."""
        del pointer, value, count
        return self.cuCtxSynchronize()

    def cuModuleLoadData(self, module: Any, image: Any) -> int:
        """Accept any module."""
        del image
        return self._set_handle(module)

    def cuModuleGetFunction(self, function: Any, module: Any, name: Any) -> int:
        """Find any function."""
        del module, name
        return self._set_handle(function)

    def cuGetErrorName(self, status: int, text: Any) -> int:
        """The name of an error, made of its number."""
        _set(text, f"CUDA_ERROR_{status}".encode())
        return 0

    def cuLaunchKernel(self, *arguments: Any) -> int:
        """Fail for every client, as a kernel that accesses an illegal address."""
        del arguments
        self._sticky = ILLEGAL_ADDRESS
        if self._server is not None:
            self._server.sendall(b'{"illegal": true}\n')
        return self._sticky

    def cuCtxDestroy_v2(self, context: Any) -> int:
        """Destroy the last context with its memory."""
        del context
        if self._contexts:
            self._contexts.pop()
        if self._server is not None and not self._sticky:
            self._request({"context": False})
        return self._sticky

    # --- inside ---

    def _new_context(self, number: int) -> Context | int:
        """A context of the device with this index, or the error code that prevents it."""
        if self._multiprocessors == 0:
            return UNAVAILABLE
        if not 0 <= number < len(self._devices):
            return INVALID_DEVICE
        size = context_bytes(self._multiprocessors or 0)
        return (
            Context(self._devices[number], size)
            if self._fits(self._devices[number], size)
            else OUT_OF_MEMORY
        )

    def _fits(self, device: str, size: int) -> bool:
        """True when `size` more bytes are within the client's limit for the device."""
        return sum(
            context.size for context in self._contexts if context.device == device
        ) + size <= self._limits.get(device, sys.maxsize)

    def _set_handle(self, reference: Any) -> int:
        self._receive_notice()
        if not self._sticky:
            _set(reference, 1)
        return self._sticky

    def _connect(self) -> socket.socket | None:
        try:
            return self._environment.open_socket("control", "connect")
        except OSError:
            return None

    def _attach(self) -> dict[str, Any]:
        environment = self._environment
        return self._request(
            {"attach": os.getpid(), "uid": environment.uid, "namespace": environment.namespace}
        )

    def _request(self, message: dict[str, Any]) -> dict[str, Any]:
        """The daemon's answer; code 806 when the daemon was killed."""
        assert self._server is not None  # noqa: S101 - checked by its callers
        try:
            self._server.sendall(json.dumps(message).encode() + b"\n")
            return self._read()
        except OSError:
            return {"code": RPC_FAILURE}

    def _read(self) -> dict[str, Any]:
        data = b""
        while self._server is not None and not data.endswith(b"\n"):
            piece = self._server.recv(4096)
            if not piece:
                self._sticky = self._sticky or RPC_FAILURE
                return {"code": self._sticky}
            data += piece
        answer = json.loads(data.splitlines()[-1])
        if "sticky" in answer:
            self._sticky = int(answer["sticky"])
            return {"code": self._sticky}
        return dict(answer)

    def _receive_notice(self) -> None:
        """Read a message that the server has sent meanwhile."""
        if (
            self._server is not None
            and not self._sticky
            and select.select([self._server], [], [], 0)[0]
        ):
            self._read()

    def _without_server(self) -> int:
        mode = self._environment.compute_mode()
        others = [pid for pid in self._environment.gpu_user_pids() if pid != os.getpid()]
        return (
            UNAVAILABLE if mode == "Prohibited" or (mode == "Exclusive_Process" and others) else 0
        )

    def _register(self) -> None:
        """Record this process for nvidia-smi until it ends, unless the state is read-only.

        The file of a killed process stays; it counts while no other process has its PID.
        """
        pid, folder = os.getpid(), f"{self._environment.state}/cuda"
        with contextlib.suppress(OSError):
            os.makedirs(folder, exist_ok=True)
            with open(f"{folder}/{pid}", "w") as file:
                file.write(
                    f"python3\n{self._devices[0]}\n{'C' if self._server is None else 'M+C'}\n"
                )
            atexit.register(_remove_record, f"{folder}/{pid}", pid)


def _remove_record(path: str, pid: int) -> None:
    """Remove the record of process `pid`; a forked child leaves it alone."""
    if os.getpid() == pid:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _number(value: Any) -> int:
    """A Python or a ctypes integer."""
    return int(getattr(value, "value", value))


def _effective_percentage(percentage: float) -> float:
    """The server's percentage, or the process's own where that is less (MPS guide)."""
    from .messages import parse_percentage  # only here: few programs set one

    return min(
        percentage,
        parse_percentage(os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "")) or percentage,
    )


def gpu_uuid(number: int) -> str:
    """The UUID of a GPU, as the mock's nvidia-smi prints it."""
    return f"GPU-{number:08d}-c0de-4b1d-8000-{number:012d}"


def visible_devices(present: list[str], wanted: str | None) -> list[str]:
    """The devices that CUDA_VISIBLE_DEVICES selects, up to its first bad word."""
    if wanted is None:
        return present
    found: list[str] = []
    for word in wanted.split(","):
        match = [
            device for device in present if word.startswith("GPU-") and device.startswith(word)
        ]
        if word.isdigit() and int(word) < len(present):
            match = [present[int(word)]]
        if not match:
            break
        found += match
    return found


def _set(reference: Any, value: int | bytes) -> None:
    """Write through `byref(x)`; ignore other pointers."""
    target = getattr(reference, "_obj", None)
    if target is not None:
        target.value = value
