"""The GPU, its driver, and proof that it works. Pure.

Sources: Google, "Run GPU workloads on Container-Optimized OS" (cos-extensions, the driver folder,
device nodes); the public cos-gpu-installer source (lock file, cache file, failure texts, exit
statuses).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from provision.core.model import Facts, State
from provision.core.resource import Diagnosis, Resource
from provision.core.shell import RemotePath, Script, fields, script
from provision.resources.file import remember_disk_full

DRIVER_DIR = RemotePath("/var/lib/nvidia")
_RECORD = RemotePath("/var/lib/provision/driver")


@dataclass(frozen=True, kw_only=True)
class Gpu(Resource):
    """At least `count` NVIDIA GPUs on the PCI bus. Nothing on the host can make one."""

    count: int = 1

    def probe(self) -> Script:
        """Display controllers (class 03) of vendor 10de under /sys/bus/pci."""
        return script("""
gpus=0
for device in "$R"/sys/bus/pci/devices/*; do
    test -r "$device/vendor" || continue
    read -r vendor <"$device/vendor"
    read -r class <"$device/class"
    case $vendor/$class in 0x10de/0x03*) gpus=$((gpus + 1)) ;; esac
done
echo "gpus=$gpus"
nodes=0
for node in "$R"/dev/nvidia[0-9]*; do
    test ! -e "$node" || nodes=$((nodes + 1))
done
echo "nodes=$nodes"
""")

    def read(self, text: str) -> State | None:
        """`{"enough", "gpus"}`; a host that hides its PCI bus but has device nodes counts those."""
        found = fields(text)
        gpus = max(int(found["gpus"]), int(found.get("nodes", "0")))
        return {"enough": gpus >= self.count, "gpus": gpus}

    def desired(self, facts: Facts) -> State:  # noqa: ARG002
        """`{"enough": True}`."""
        return {"enough": True}

    def ensure(self, facts: Facts) -> Script | None:  # noqa: ARG002
        """Nothing can."""
        return None

    def diagnose(self, output: str, actual: State | None) -> Diagnosis:  # noqa: ARG002
        """No GPU, or too few."""
        found = (actual or {}).get("gpus", 0)
        return Diagnosis(
            f"the host has {found} NVIDIA GPUs, {self.count} wanted",
            "invoke vm.show   (which GPU the VM was made with), or set gpu_count",
        )


# What was asked, what it resolved to and for which BUILD_ID is kept in the record; a label such as
# `latest` is resolved again only when one of them changes, a full number needs no look-up on the
# network.
_COS_ENSURE = """
build=
while IFS='=' read -r key value || test -n "$key"; do
    value=${value#\\"}
    case $key in BUILD_ID) build=${value%\\"} ;; esac
done <"$R/etc/os-release"
known() { sed -n "s/^$1=//p" "$record" 2>/dev/null | tail -n 1; }
want=$asked
if test "$(known asked)" = "$asked" && test "$(known build_id)" = "$build" && test -n "$(known version)"; then
    want=$(known version)
fi
check_loaded() {
    loaded=
    if test -r "$R/sys/module/nvidia/version"; then read -r loaded <"$R/sys/module/nvidia/version"; fi
    test -n "$loaded" && test "$loaded" != "$1" || return 0
    echo "driver $loaded is loaded, $1 is wanted: a loaded module stays until the next reboot"
    exit 75
}
case $want in [0-9]*.[0-9]*) check_loaded "$want" ;; esac
mkdir -p "${record%/*}"
log=${record}-install.log
trap 'rm -f "$log.status"' EXIT
attempt=1
while :; do
    { cos-extensions install gpu -- "-version=$want" 2>&1 && echo 0 >"$log.status" || echo "$?" >"$log.status"; } | tee "$log"
    read -r status <"$log.status"
    test "$status" != 0 || break
    tries=1
    if grep -qiE 'lock.* is locked' "$log"; then
        tries=$lock_tries
    elif grep -qiE 'status:? 404' "$log"; then
        tries=1
    elif grep -qiE 'Client.Timeout|failed to download|status:? 5[0-9][0-9]|exit status 125' "$log"; then
        tries=$network_tries
    fi
    test "$attempt" -lt "$tries" || exit "$status"
    attempt=$((attempt + 1))
    echo "trying again in $pause s ($attempt of $tries)"
    sleep "$pause"
done
version=$(sed -n 's/^DRIVER_VERSION=//p' "$dir/.cache" | tail -n 1)
test -n "$version" || { echo "the installer left no version in its cache file"; exit 1; }
printf 'asked=%s\\nversion=%s\\nbuild_id=%s\\n' "$asked" "$version" "$build" >"$record.new"
mv -f "$record.new" "$record"
check_loaded "$version"
"""

# A workstation keeps its own driver; its libraries are gathered into one folder, since a container
# mounts folders. Those of 64 bits, by what ldconfig says of them: where a distribution keeps the
# others differs (/usr/lib on Fedora and SUSE). Of several with one name, the one of the loaded
# module's version counts (a CUDA toolkit brings a libcuda of its own in compat/), else the first
# that ldconfig names, which is the one that the linker takes. Each is put in place by a rename:
# writing into a library that is mapped kills the programs that use it.
_PRESENT_ENSURE = """
if ! test -r "$R/sys/module/nvidia/version"; then
    echo "no NVIDIA driver is loaded on this host"
    exit 76
fi
read -r version <"$R/sys/module/nvidia/version"
mkdir -p "$dir/bin" "$dir/lib64" "${record%/*}"
put() { cmp -s "$1" "$2" || { cp -fL "$1" "$2.new" && mv -f "$2.new" "$2"; }; }
if ! test -e "$R/dev/nvidia-uvm" && command -v nvidia-modprobe >/dev/null; then nvidia-modprobe -c 0 -u; fi
for tool in nvidia-smi nvidia-cuda-mps-control nvidia-cuda-mps-server nvidia-debugdump nvidia-persistenced; do
    path=$(command -v "$tool" || true)
    test -z "$path" || test "$path" = "$dir/bin/$tool" || put "$path" "$dir/bin/$tool"
done
ldconfig -p | sed -n 's/.*([^)]*64[^)]*) => //p' |
    grep -E '/lib(cuda|nvidia|nvcuvid|nvoptix|cudadebugger|EGL_nvidia|GLX_nvidia|GLESv[12].*_nvidia)[^/]*\\.so' |
    while read -r library; do
        case $(readlink -f "$library") in *".so.$version") echo "own $library" ;; *) echo "other $library" ;; esac
    done |
    awk '/^own / { print; next } { others = others $0 "\\n" } END { printf "%s", others }' |
    {
        taken=:
        while read -r _ library; do
            name=${library##*/} target=$dir/lib64/${library##*/}
            case $taken in *":$name:"*) continue ;; esac
            taken=$taken$name:
            test "$library" = "$target" || put "$library" "$target"
        done
    }
printf 'asked=present\\nversion=%s\\nbuild_id=\\n' "$version" >"$record"
"""

_PROBE = """
if test -r "$record"; then cat "$record"; fi
if test -r "$dir/.cache"; then sed -n 's/^BUILD_ID=/cache_build=/p; s/^DRIVER_VERSION=/cache_version=/p' "$dir/.cache"; fi
if test -r "$R/sys/module/nvidia/version"; then
    read -r version <"$R/sys/module/nvidia/version"
    echo "loaded=$version"
fi
test ! -e "$dir/bin/nvidia-smi" || echo smi=yes
test ! -e "$dir/lib64/libcuda.so.1" || echo libcuda=yes
devices=yes
for node in nvidia0 nvidiactl nvidia-uvm; do test -e "$R/dev/$node" || devices=; done
echo "devices=$devices"
"""


class _Failure(NamedTuple):
    pattern: str
    cause: str
    fix: str


# Failure texts of the installer (public cos-gpu-installer source, users' reports) and what each
# means.
_FAILURES = (
    _Failure(
        r"a loaded module stays until the next reboot",
        "another driver version is loaded; the new one needs a reboot",
        "invoke vm.ssh -- sudo reboot, then invoke vm.provision",
    ),
    _Failure(
        r"no NVIDIA driver is loaded",
        "this host has no NVIDIA driver (driver: present installs none)",
        "install the driver of your distribution, then run again",
    ),
    _Failure(
        r"(?i)lock.* is locked",
        "another installer kept running on the host",
        "wait for it to end, then run the same command again",
    ),
    _Failure(
        r"(?i)driver.*status:? 404|version .* not found",
        "the wanted driver does not exist for this build of the OS",
        "cos-extensions list   (on the host) names those that do",
    ),
    _Failure(
        r"(?i)failed to get GPU type information",
        "the installer finds no GPU on the VM",
        "invoke vm.show   (which GPU the VM was made with)",
    ),
    _Failure(
        r"(?i)failed to download",
        "the driver could not be downloaded: no route out, no storage scope, or no such build",
        "curl -sI https://storage.googleapis.com   (on the host) tells whether it has a route out",
    ),
    _Failure(
        r"Client\.Timeout|exit status 125",
        "the installer image could not be pulled: no route out, or Docker was not ready",
        "give the VM an external IP, Cloud NAT or Private Google Access",
    ),
    _Failure(
        r"(?i)failed to load GPU drivers|insmod",
        "the kernel refused the modules: wrong flavour, Secure Boot, or an old version is loaded",
        "sudo dmesg | tail   (on the host), then reboot it",
    ),
    _Failure(
        r"(?i)failed to verify.*exit status 255",
        "nvidia-smi failed after the installation: a cached driver of another version, or the GPU is lost",
        "sudo rm -rf /var/lib/nvidia/.cache && sudo reboot   (on the host)",
    ),
    _Failure(
        r"(?i)not supported on dev images",
        "GPU drivers are not offered on dev images",
        "set image to a family such as cos-125-lts",
    ),
    _Failure(
        r"cos-extensions: (command )?not found|not found: cos-extensions",
        "this host is not Container-Optimized OS with GPU support (milestone 85 or newer)",
        "set driver: present for a host with a driver of its own",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Driver(Resource):
    """The NVIDIA driver: installed for this build of the OS, loaded, its device nodes there.

    `version` is `default`, `latest`, a branch such as `R535`, or a full number. On hosts that are
    not Container-Optimized OS, or with `source="present"`, the driver is taken as found and its
    files are gathered into `directory`.
    """

    version: str = "default"
    source: str | None = None
    directory: str = DRIVER_DIR.path
    timeout_s: float = 1200.0
    pause_s: float = 15.0
    lock_tries: int = 60
    network_tries: int = 3

    def _installs(self, facts: Facts) -> bool:
        return self.source == "cos" or (self.source is None and facts.is_cos)

    def probe(self) -> Script:
        """The record, the installer's cache, the loaded module, the device nodes."""
        return script(_PROBE, record=_RECORD, dir=RemotePath(self.directory))

    def read(self, text: str) -> State | None:
        """`{"asked", "version", "build_id", "installed", "loaded", "devices"}`; None when there is no trace of a driver."""
        found = fields(text)
        version, loaded = found.get("version", ""), found.get("loaded", "")
        if not found.get("asked") and not loaded and not found.get("smi"):
            return None
        installed = (
            found.get("smi") == "yes"
            and found.get("cache_version") == version
            and found.get("cache_build") == found.get("build_id")
        )
        return {
            "asked": found.get("asked"),
            "version": version or loaded or None,
            "build_id": found.get("build_id") or None,
            "installed": installed,
            "gathered": found.get("smi") == "yes" and found.get("libcuda") == "yes",
            "loaded": bool(loaded) and loaded == (version or loaded),
            "devices": found.get("devices") == "yes",
        }

    def desired(self, facts: Facts) -> State:
        """On Container-Optimized OS: asked, for this BUILD_ID, installed, loaded. Elsewhere: loaded, gathered, device nodes there."""
        if not self._installs(facts):
            return {"gathered": True, "loaded": True, "devices": True}
        return {
            "asked": self.version,
            "build_id": facts.build_id,
            "installed": True,
            "loaded": True,
            "devices": True,
        }

    def ensure(self, facts: Facts) -> Script | None:
        """Run the installer (a cache hit takes seconds), retry what passes by itself, keep the record."""
        if not self._installs(facts):
            return script(_PRESENT_ENSURE, record=_RECORD, dir=RemotePath(self.directory))
        return script(
            _COS_ENSURE,
            record=_RECORD,
            dir=RemotePath(self.directory),
            asked=self.version,
            pause=f"{self.pause_s:g}",
            lock_tries=self.lock_tries,
            network_tries=self.network_tries,
        )

    def diagnose(self, output: str, actual: State | None) -> Diagnosis | None:  # noqa: ARG002
        """The installer's own failure texts, mapped to their causes."""
        for pattern, cause, fix in _FAILURES:
            if re.search(pattern, output):
                return Diagnosis(cause, fix)
        return remember_disk_full(output)


_SMI_PROBE = """
export LD_LIBRARY_PATH="$dir/lib64"
"$dir/bin/nvidia-smi" --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>&1
echo "status=$?"
"""


@dataclass(frozen=True, kw_only=True)
class NvidiaSmi(Resource):
    """Proof that the driver works: `nvidia-smi` really run from the driver folder."""

    directory: str = DRIVER_DIR.path

    def probe(self) -> Script:
        """Run it; its status and text are the state."""
        return script(_SMI_PROBE, dir=RemotePath(self.directory))

    def read(self, text: str) -> State | None:
        """`{"runs", "gpu", "driver", "memory", "text"}`; the text only where it failed."""
        body, _, status = text.rpartition("status=")
        lines = body.strip().splitlines()
        if status.strip() != "0" or not lines:
            return {"runs": False, "text": body.strip()}
        name, _, rest = lines[0].partition(", ")
        driver, _, memory = rest.partition(", ")
        return {"runs": True, "gpu": name, "driver": driver, "memory": memory, "gpus": len(lines)}

    def desired(self, facts: Facts) -> State:  # noqa: ARG002
        """`{"runs": True}`."""
        return {"runs": True}

    def ensure(self, facts: Facts) -> Script | None:  # noqa: ARG002
        """Driver and mount make it run; there is nothing of its own to do."""
        return None

    def diagnose(self, output: str, actual: State | None) -> Diagnosis:  # noqa: ARG002
        """Not found, not executable, or a library of another version."""
        text = str((actual or {}).get("text", ""))
        said = text.splitlines()[-1] if text else "it printed nothing"
        if "ermission denied" in text:
            return Diagnosis(
                f"nvidia-smi is not executable: the driver folder is mounted noexec ({said})",
                "invoke vm.provision",
            )
        if "version mismatch" in text:
            return Diagnosis(
                f"the loaded driver and its libraries differ ({said})",
                "invoke vm.ssh -- sudo reboot, then invoke vm.provision",
            )
        return Diagnosis(f"nvidia-smi does not run: {said}", "invoke vm.provision")
