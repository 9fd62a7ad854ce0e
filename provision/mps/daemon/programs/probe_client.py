# A CUDA client of the driver API, run in a container as `python -c TEXT [prove]`, Python 3.6 or
# later. Prints driver= (CUDA version) and sms= (multiprocessors that it may use) and makes a
# context; with `prove` it also looks for itself in the servers' lists of clients. The last line is
# then `attached: …` or `outside: …`. A call that fails ends it with `failed: NAME gives STATUS`.
# Comments are not sent.
import ctypes
import os
import subprocess
import sys
import time


def finish(line: str) -> None:
    print(line)
    sys.exit()


def ask(line: str) -> "list[str]":
    words = ["nvidia-cuda-mps-control"]
    out, err = subprocess.PIPE, subprocess.STDOUT
    done = subprocess.run(words, input=line.encode(), stdout=out, stderr=err, timeout=10)
    return done.stdout.decode(errors="replace").split()


def call(name: str, *values: object) -> None:
    status = getattr(cuda, name)(*values)
    if status:
        finish(f"failed: {name} gives {status}")


# 16 is CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT of cuda.h.
def count_multiprocessors() -> bool:
    return not cuda.cuDeviceGetAttribute(ctypes.byref(count), 16, device)


def is_listed(pid: str) -> bool:
    servers = [word for word in ask("get_server_list") if word.isdigit()]
    return any(pid in ask(f"get_client_list {server}") for server in servers)


def prove(pid: str, share: str) -> None:
    for _ in range(20):
        if is_listed(pid):
            finish(f"attached: process {pid}{share}")
        time.sleep(0.1)
    finish(f"outside: process {pid} uses the GPU and no server lists it")


try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    finish(f"failed: {error}")
device, context, version, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
if cuda.cuDriverGetVersion(ctypes.byref(version)) == 0:
    print(f"driver={version.value}")
# Before the context, which EXCLUSIVE_PROCESS refuses to a process that the server does not serve.
if count_multiprocessors():
    print(f"sms={count.value}")
# cuCtxCreate and not the primary context: it reports errors 808 and 46.
call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
# With a context, a client of MPS sees its own share.
if sys.argv[1:] == ["prove"]:
    sees = f" sees {count.value} multiprocessors" if count_multiprocessors() else ""
    prove(str(os.getpid()), sees)
