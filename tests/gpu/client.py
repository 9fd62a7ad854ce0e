"""A CUDA client of the driver API: holds a context, works, counts multiprocessors, or faults."""

import ctypes
import sys
import time

MULTIPROCESSORS = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
FAULT = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry fault()
{
    .reg .b64 %d<2>;
    .reg .b32 %r<2>;
    mov.u64 %d1, 64;
    mov.u32 %r1, 1;
    st.global.u32 [%d1], %r1;
    ret;
}
\0"""


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    what, seconds = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    size, times = (64 << 20, 500) if what == "busy" else (1 << 20, 1)
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    count, module, fault = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()

    def call(name: str, *words: object) -> None:
        status = getattr(cuda, name)(*words)
        if status:
            text = ctypes.c_char_p()
            cuda.cuGetErrorName(status, ctypes.byref(text))
            say(f"{name}: error {status} {(text.value or b'?').decode()}")
            raise SystemExit(40)

    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
    call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(size))
    say("ready")
    if what == "fault":
        call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(FAULT))
        call("cuModuleGetFunction", ctypes.byref(fault), module, b"fault")
        call("cuLaunchKernel", fault, 1, 1, 1, 1, 1, 1, 0, None, None, None)
        call("cuCtxSynchronize")
    if what == "sms":
        call("cuDeviceGetAttribute", ctypes.byref(count), MULTIPROCESSORS, device)
        say(str(count.value))
        return 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(times):
            call("cuMemsetD8_v2", memory, ctypes.c_ubyte(1), ctypes.c_size_t(size))
        call("cuCtxSynchronize")
        time.sleep(0.0 if what == "busy" else 0.1)
    say("done")
    return 0


sys.exit(main())
