"""The stand-in for libcuda, as far as MPS goes: a program attaches to a daemon that it reaches, or runs without and says nothing.

What each call gives was observed on driver 580 or is told by the CUDA headers; see docs/facts.md.
It computes nothing and measures nothing: of the GPU's attributes it tells the multiprocessors that
this process may use, others are refused (801, not supported).
"""

# what every program of a container loads:
# ruff: noqa: N802, PTH103, PTH112, PTH120, PTH123

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import sys

from .client_limits import context_bytes, limits, lowest, multiprocessors, of_variable
from .environment import Place

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
CONNECTION_FAILED = 805
RPC_FAILURE = 806


def load(name: str) -> Any:
    """The stand-in where the linker would find it, the error of a missing library, or None for a real library."""
    place = Place()
    path = place.library()
    if path is None:
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")
    with open(path, "rb") as file:
        if file.read(4) == b"\x7fELF":
            return None
    return Cuda(
        Place(state=f"{os.path.dirname(path)}/.lab")
        if os.path.isdir(f"{os.path.dirname(path)}/.lab")
        else place
    )


class Context:
    """A context of a device, and the bytes that it takes: its own, and what was allocated in it."""

    def __init__(self, device: str, size: int) -> None:
        self.device = device
        self.size = size


class Cuda:
    """The driver API of one process. Arguments are those of ctypes; what `byref` points to is set."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._server: socket.socket | None = None
        self._sticky = 0
        self._multiprocessors: int | None = None
        self._limits: dict[str, int] = {}
        self._contexts: list[Context] = []
        self._devices: list[str] = []
        self._held: list[int] = []

    # --- the driver API ---

    def cuInit(self, flags: int) -> int:
        """Attach where a daemon answers; wait, as long as it takes, while a server of another user has clients."""
        del flags
        try:
            self._held.append(os.open(self._place.root + "/dev/nvidia-uvm", os.O_RDONLY))
        except OSError:
            return NO_DEVICE
        present = [uuid(number) for number in range(self._place.gpus())]
        percentage = 100.0
        self._server = self._connect()
        if self._server is not None:
            answer = self._ask(
                {"attach": os.getpid(), "uid": self._place.uid, "namespace": self._place.namespace}
            )
            if answer.get("code"):
                return int(answer["code"])
            present = [each for each in present if each in answer["devices"]]
            percentage = _lowered(float(answer["percentage"]))
        total = self._place.multiprocessors()
        self._multiprocessors = (
            multiprocessors(total, percentage, self._place.capability()) if total else None
        )
        self._devices = chosen(present, os.environ.get("CUDA_VISIBLE_DEVICES"))
        if self._server is not None:
            self._limits = lowest(
                answer["limits"],
                limits(
                    of_variable(os.environ.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "")),
                    self._devices,
                ),
            )
        if not self._devices:
            return NO_DEVICE
        self._tell()
        return 0

    def cuDriverGetVersion(self, version: Any) -> int:
        """The mock's driver is told by nvidia-smi alone."""
        del version
        return NOT_SUPPORTED

    def cuDeviceGetCount(self, count: Any) -> int:
        """How many devices this process sees."""
        _set(count, len(self._devices))
        return 0

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:
        """A device by its number."""
        if not 0 <= ordinal < len(self._devices):
            return INVALID_DEVICE
        _set(device, ordinal)
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:
        """The multiprocessors that this process may use; the mock knows nothing else of a GPU's inside."""
        del device
        if attribute != MULTIPROCESSORS or self._multiprocessors is None:
            return NOT_SUPPORTED
        _set(value, self._multiprocessors)
        return 0

    def cuCtxCreate_v2(self, context: Any, flags: int, device: Any) -> int:
        """A context: one of those that the server has, or one of its own where the compute mode lets it."""
        del flags
        if self._sticky:
            return self._sticky
        made = self._context(_number(device))
        if isinstance(made, int):
            return made
        code = (
            int(self._ask({"context": True})["code"])
            if self._server is not None
            else self._without_server()
        )
        if code == 0:
            self._contexts.append(made)
            _set(context, 1)
        return code

    def cuCtxSynchronize(self) -> int:
        """0, or what became of the process: 806 without its server, 810 terminated, 700 after somebody's fault."""
        self._hear()
        return self._sticky

    def cuMemAlloc_v2(self, pointer: Any, size: Any) -> int:
        """Memory of the last context, within the client's limit; `size` in bytes, a number or a ctypes integer."""
        self._hear()
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
        """Work of some kind: it ends as synchronizing would."""
        del pointer, value, count
        return self.cuCtxSynchronize()

    def cuModuleLoadData(self, module: Any, image: Any) -> int:
        """Any module is taken."""
        del image
        return self._made(module)

    def cuModuleGetFunction(self, function: Any, module: Any, name: Any) -> int:
        """Any function is found."""
        del module, name
        return self._made(function)

    def cuGetErrorName(self, status: int, text: Any) -> int:
        """The number stands for the name."""
        _set(text, f"CUDA_ERROR_{status}".encode())
        return 0

    def cuLaunchKernel(self, *arguments: Any) -> int:
        """No kernel runs here: what is launched touches an illegal address, and every client of the server hears of it."""
        del arguments
        self._sticky = ILLEGAL_ADDRESS
        if self._server is not None:
            self._server.sendall(b'{"illegal": true}\n')
        return self._sticky

    def cuCtxDestroy_v2(self, context: Any) -> int:
        """Give the last context back, and its memory with it."""
        del context
        if self._contexts:
            self._contexts.pop()
        if self._server is not None and not self._sticky:
            self._ask({"context": False})
        return self._sticky

    # --- how it gets there ---

    def _context(self, number: int) -> Context | int:
        """A context of the device with this number; or the error for one that cannot be."""
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
        """True where so much more is within the client's limit for the device."""
        return sum(
            each.size for each in self._contexts if each.device == device
        ) + size <= self._limits.get(device, sys.maxsize)

    def _made(self, what: Any) -> int:
        self._hear()
        if not self._sticky:
            _set(what, 1)
        return self._sticky

    def _connect(self) -> socket.socket | None:
        try:
            return self._place.socket_at("control", "connect")
        except OSError:
            return None

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """An answer of the daemon; one that never comes, because it was killed, is 806."""
        assert self._server is not None  # noqa: S101 - its callers look
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

    def _hear(self) -> None:
        """What the server has told meanwhile."""
        if (
            self._server is not None
            and not self._sticky
            and select.select([self._server], [], [], 0)[0]
        ):
            self._read()

    def _without_server(self) -> int:
        mode = self._place.compute_mode()
        others = [pid for pid in self._place.users() if pid != os.getpid()]
        return (
            UNAVAILABLE if mode == "Prohibited" or (mode == "Exclusive_Process" and others) else 0
        )

    def _tell(self) -> None:
        """Let nvidia-smi on the host see this process; where the state is another machine's, nobody is told."""
        folder = f"{self._place.state}/cuda"
        with contextlib.suppress(OSError):
            os.makedirs(folder, exist_ok=True)
            with open(f"{folder}/{os.getpid()}", "w") as file:
                file.write(
                    f"python3\n{self._devices[0]}\n{'C' if self._server is None else 'M+C'}\n"
                )


def _number(value: Any) -> int:
    """A Python or a ctypes integer."""
    return int(getattr(value, "value", value))


def _lowered(percentage: float) -> float:
    """The server's percentage, or the process's own where that is less (MPS guide)."""
    from .messages import percentage as read  # only here: few set one

    return min(
        percentage, read(os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "")) or percentage
    )


def uuid(number: int) -> str:
    """The UUID of a GPU, as nvidia-smi of the mock prints it."""
    return f"GPU-{number:08d}-c0de-4b1d-8000-{number:012d}"


def chosen(present: list[str], wanted: str | None) -> list[str]:
    """What CUDA_VISIBLE_DEVICES leaves of the devices: indices count within them, and the first bad word ends the list."""
    if wanted is None:
        return present
    found: list[str] = []
    for word in wanted.split(","):
        match = [each for each in present if word.startswith("GPU-") and each.startswith(word)]
        if word.isdigit() and int(word) < len(present):
            match = [present[int(word)]]
        if not match:
            break
        found += match
    return found


def _set(reference: Any, value: int | bytes) -> None:
    """Write through `byref(x)`, or to a pointer."""
    target = getattr(reference, "_obj", None)
    if target is not None:
        target.value = value
