"""A CUDA client of the driver API in plain Python, to be run in a worker container: it tells what a process sees, and proves attachment.

It needs the driver's libcuda and nothing else. Pure: text that is sent, and what it prints, read.
"""

from __future__ import annotations

from dataclasses import dataclass

from provision.core.parsing import parse_int
from provision.core.shell import fields

# Multiprocessors are attribute 16 of a device (cuda.h, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT); a
# client of MPS sees those that it may use. They are told before a context is made, which
# EXCLUSIVE_PROCESS refuses to whom the server does not serve, and read again after it for the
# proof. The context is made with cuCtxCreate, as 808 and 46 show there.
CLIENT = """
import ctypes, os, subprocess, sys, time

def ask(line):
    done = subprocess.run(["nvidia-cuda-mps-control"], input=line.encode(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=10)
    return done.stdout.decode(errors="replace").split()

def call(name, *values):
    status = getattr(cuda, name)(*values)
    if status:
        sys.exit(print(f"failed: {name} gives {status}"))

try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    sys.exit(print(f"failed: {error}"))
device, context, version, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()

def multiprocessors():
    return cuda.cuDeviceGetAttribute(ctypes.byref(count), 16, device) == 0

call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
if cuda.cuDriverGetVersion(ctypes.byref(version)) == 0:
    print(f"driver={version.value}")
if multiprocessors():
    print(f"sms={count.value}")
call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
seen = multiprocessors()
if sys.argv[1:] != ["prove"]:
    sys.exit()
me = str(os.getpid())
for _ in range(20):
    if any(me in ask(f"get_client_list {server}") for server in ask("get_server_list") if server.isdigit()):
        sys.exit(print(f"attached: process {me}" + (f" sees {count.value} multiprocessors" if seen else "")))
    time.sleep(0.1)
print(f"outside: process {me} uses the GPU and no server lists it")
"""
"""Prints `driver=` and `sms=` and makes a context; with the argument `prove` it looks itself up in
the servers' lists of clients as well.

Its last line is then `attached: …` or `outside: …`. A call that fails ends it with `failed: NAME
gives STATUS`.
"""


@dataclass(frozen=True)
class Seen:
    """What the client saw; None where it did not come so far."""

    sms: int | None = None
    cuda: tuple[int, int] | None = None
    """Newest CUDA version of the driver."""


def seen(text: str) -> Seen:
    """What `CLIENT` printed. Never raises."""
    found = fields(text)
    driver = parse_int(found.get("driver", ""))
    return Seen(
        sms=parse_int(found.get("sms", "")) or None,
        cuda=(driver // 1000, driver % 1000 // 10) if driver else None,
    )
