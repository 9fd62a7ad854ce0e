# shellcheck shell=sh disable=SC2154
# Prints what MPS depends on inside the worker container: programs, libraries, folders, logs, limits.
# $1: names of the environment variables to print. Reads $R and $pipe.
watched=$1

echo inside=yes
echo "glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null || true)"
test -n "$(getconf GNU_LIBC_VERSION 2>/dev/null)" ||
    ! test -e "$R/lib64/ld-linux-x86-64.so.2" || echo glibc=present
for node in nvidia0 nvidiactl nvidia-uvm; do
    test ! -e "$R/dev/$node" || echo "node.$node=yes"
done
if smi=$(timeout 20 nvidia-smi -L 2>&1); then echo smi_status=0; else echo "smi_status=$?"; fi
echo "smi_uuids=$(printf '%s\n' "$smi" | sed -n 's/^GPU \([0-9]*\): .*(UUID: \([^)]*\)).*/\1,\2/p' | tr '\n' ' ')"
echo "smi_gpus=$(printf '%s\n' "$smi" | grep -c '^GPU ')"
echo "smi_said=$(printf '%s\n' "$smi" | grep -v '^ *$' | head -n 3 | tr '\n' ' ')"
echo "control=$(command -v nvidia-cuda-mps-control || true)"
echo "server=$(command -v nvidia-cuda-mps-server || true)"
echo "control_said=$(timeout 10 nvidia-cuda-mps-control -v 2>&1 | head -n 1)"

cached=$(ldconfig -p 2>/dev/null | sed -n 's/.*libcuda\.so\.1 ([^)]*64[^)]*) => \(.*\)\/[^/]*$/\1/p' | tr '\n' ':')
folders=$LD_LIBRARY_PATH:$cached
IFS=:
for folder in $folders; do
    test -n "$folder" || continue
    library=$R${folder#"$R"}/libcuda.so.1
    test -e "$library" || continue
    echo "library=$(readlink -f "$library")"
    echo "library_in=${folder#"$R"}"
    break
done
unset IFS

log=$CUDA_MPS_LOG_DIRECTORY
echo "pipe=$pipe"
echo "log=$log"
# A server becomes the user of its client and has to pass every parent of the pipe directory.
if test -d "$R$pipe"; then
    echo "pipe_type=$(stat -f -c %T "$R$pipe" 2>/dev/null || true)"
    parent=$pipe
    while test "$parent" != / && test -n "$parent"; do
        echo "mode.$parent=$(stat -c %a "$R$parent" 2>/dev/null || true)"
        parent=$(dirname "$parent")
    done
fi
test ! -d "$R$log" || echo log_dir=yes
test ! -w "$R$log" || echo log_writable=yes
# The daemon logs every question and its answer; a status a second would leave nothing else to see.
questions='\] (Accepting connection\.\.\.|NEW UI|Cmd:.*|[0-9.]+[KMG]?|INITIALIZING|ACTIVE|FAULT|UI closed)$'
test ! -r "$R$log/control.log" || {
    echo control_log=yes
    grep -avE "$questions" "$R$log/control.log" | tail -n 400 | sed 's/^/control|/'
}
test ! -r "$R$log/server.log" || tail -n 400 "$R$log/server.log" | sed 's/^/server|/'

# Zombies count here, and so do daemons of other pipe directories.
for process in /proc/[0-9]*; do
    pid=${process#/proc/}
    { read -r comm <"$process/comm" && read -r _ _ state parent _ <"$process/stat"; } 2>/dev/null || continue
    case $comm in nvidia-cuda-mps*) ;; *) continue ;; esac
    test "$(variable_of "$pid" PROVISION_MOCK_ROOT)" = "$R" || continue
    echo "process|$pid|$parent|$state|$(variable_of "$pid" CUDA_MPS_PIPE_DIRECTORY)"
    case $state in Z | X) continue ;; esac
    paths=$(variable_of "$pid" PATH)
    test -z "$paths" || (PATH=$paths && command -v nvidia-cuda-mps-server >/dev/null) || echo "serverless=$pid"
done

echo "shm=$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print int($2 / 1024) " " int($4 / 1024) }')"
# shellcheck disable=SC3045 # POSIX names no -n; every shell that reads this has it
echo "files=$(ulimit -n)"
echo "pids=$(cat /sys/fs/cgroup/pids.max 2>/dev/null || true)"
# GNU's nproc takes OMP_NUM_THREADS, which every worker has, for the number of cores.
echo "cpus=$(unset OMP_NUM_THREADS OMP_THREAD_LIMIT && nproc 2>/dev/null || grep -c ^processor /proc/cpuinfo)"
echo "load=$(cut -d ' ' -f 1 /proc/loadavg 2>/dev/null || true)"
for variable in $watched; do env | sed -n "s/^$variable=/own|$variable|/p"; done
