"""A CUDA client without a framework, to be run in the worker container: it tells what a process sees, and can be attached.

It needs Python and the driver's libcuda, nothing else, and prints `key=value` lines as it goes, so that a failure says
how far it came. Pure: text that is sent, and what it prints, read.
"""

from __future__ import annotations

from dataclasses import dataclass

from provision.mps import parse
from provision.shell import fields

# Multiprocessors are attribute 16 of a device (cuda.h, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT); a client of MPS sees those that it may
# use. The context is made with cuCtxCreate, as 808 and 46 show there. It lives for the seconds given, or until standard input ends.
CLIENT = """
import ctypes, os, select, sys

def say(**words):
    for key, value in words.items():
        print(key + "=" + str(value), flush=True)

say(pid=os.getpid())
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    say(library=error)
    sys.exit(1)

def number(name, *words):
    value = ctypes.c_int(-1)
    status = getattr(cuda, name)(ctypes.byref(value), *words)
    return value.value if status == 0 else -status

status = cuda.cuInit(0)
say(init=status)
if status:
    sys.exit(1)
device = ctypes.c_int(number("cuDeviceGet", 0))
context, total = ctypes.c_void_p(), ctypes.c_size_t()
say(driver=number("cuDriverGetVersion"), devices=number("cuDeviceGetCount"))
status = cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)
say(context=status)
if status:
    sys.exit(1)
cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device)
say(sms=number("cuDeviceGetAttribute", 16, device), memory_mib=total.value >> 20, ready=1)
select.select([sys.stdin], [], [], float(sys.argv[1]))
sys.exit(0)
"""


@dataclass(frozen=True)
class Seen:
    """What the client found. Status numbers are CUDA's (0 = success); None where it did not come so far."""

    pid: int | None = None
    init: int | None = None
    context: int | None = None
    sms: int | None = None
    cuda: tuple[int, int] | None = None
    """Newest CUDA version of the driver."""
    memory_mib: int | None = None
    ready: bool = False
    library: str = ""
    """Why libcuda could not be loaded."""


def seen(text: str) -> Seen:
    """What `CLIENT` printed. Never raises: what it did not print is None."""
    found = fields(text)
    driver = parse.whole(found.get("driver", ""))
    return Seen(
        pid=parse.whole(found.get("pid", "")),
        init=parse.whole(found.get("init", "")),
        context=parse.whole(found.get("context", "")),
        sms=parse.whole(found.get("sms", "")) or None,
        cuda=(driver // 1000, driver % 1000 // 10) if driver else None,
        memory_mib=parse.whole(found.get("memory_mib", "")),
        ready=found.get("ready") == "1",
        library=found.get("library", "").strip(),
    )
