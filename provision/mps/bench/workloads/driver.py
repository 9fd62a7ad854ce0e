"""Light kernels through the CUDA driver API alone, for images without a framework.

Needs Python and libcuda. Each step launches a few kernels that keep a small part of the GPU busy
for some microseconds and then waits, as light inference does. Runs in the worker container, once
per client; the protocol is that of mlp.py.
"""

import ctypes
import os
import time

LAUNCHES, BLOCKS, THREADS, LOOPS = 8, 8, 128, 2000
WARM_UP = 30
PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry spin(.param .u64 out, .param .u32 loops)
{
    .reg .pred %p;
    .reg .f32 %f<3>;
    .reg .b32 %r<7>;
    .reg .b64 %d<4>;
    ld.param.u64 %d1, [out];
    ld.param.u32 %r1, [loops];
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mad.lo.s32 %r5, %r3, %r4, %r2;
    cvt.rn.f32.s32 %f1, %r5;
    mov.u32 %r6, 0;
again:
    fma.rn.f32 %f1, %f1, 0f3F7FFF00, 0f3A000000;
    add.u32 %r6, %r6, 1;
    setp.lt.u32 %p, %r6, %r1;
    @%p bra again;
    cvta.to.global.u64 %d2, %d1;
    mul.wide.s32 %d3, %r5, 4;
    add.u64 %d2, %d2, %d3;
    st.global.f32 [%d2], %f1;
    ret;
}
\0"""


def main() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *words: object) -> None:
        status = getattr(cuda, name)(*words)
        if status:
            text = ctypes.c_char_p()
            cuda.cuGetErrorName(status, ctypes.byref(text))
            raise SystemExit("%s: error %d %s" % (name, status, (text.value or b"").decode()))

    context, module, spin = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    device, out = ctypes.c_int(), ctypes.c_uint64()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(PTX))
    call("cuModuleGetFunction", ctypes.byref(spin), module, b"spin")
    call("cuMemAlloc_v2", ctypes.byref(out), ctypes.c_size_t(BLOCKS * THREADS * 4))
    loops = ctypes.c_uint32(LOOPS)
    words = (ctypes.c_void_p * 2)(ctypes.addressof(out), ctypes.addressof(loops))

    def work(count: int) -> None:
        for _ in range(count):
            for _ in range(LAUNCHES):
                call("cuLaunchKernel", spin, BLOCKS, 1, 1, THREADS, 1, 1, 0, None, words, None)
            call("cuCtxSynchronize")

    work(WARM_UP)
    with open(os.environ["PROVISION_BENCH_READY"], "w") as ready:
        ready.write(str(os.getpid()))
    with open(os.environ["PROVISION_BENCH_GO"]):
        began = time.time()
    work(int(os.environ["PROVISION_BENCH_STEPS"]))
    with open(os.environ["PROVISION_BENCH_TIMES"], "w") as times:
        times.write("%.6f %.6f" % (began, time.time()))


main()
