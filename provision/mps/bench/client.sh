# shellcheck shell=sh
# One client of a cell: runs the program behind its own arguments, after the barrier. Its last act is
# the file end.NUMBER in `folder`, from which cell.sh knows that it has ended.
# cores: as taskset reads them, - for any; gpu: UUID, empty for any; the others as in cell.sh.
number=$1 cores=$2 folder=$3 barrier=$4 steps=$5 threads=$6 gpu=$7
shift 7
set -u
umask 022

exec >"$folder/out.$number" 2>&1 </dev/null
export CUDA_MPS_PIPE_DIRECTORY="$folder/pipe" CUDA_MPS_LOG_DIRECTORY="$folder/log"
unset CUDA_VISIBLE_DEVICES CUDA_MPS_ACTIVE_THREAD_PERCENTAGE CUDA_MPS_PINNED_DEVICE_MEM_LIMIT
test -z "$gpu" || export CUDA_VISIBLE_DEVICES="$gpu"
# Child processes inherit PROVISION_BENCH_CLIENT: the daemon's list of processes is matched with it.
export PROVISION_BENCH="$folder" PROVISION_BENCH_CLIENT="$number" PROVISION_BENCH_STEPS="$steps"
export PROVISION_BENCH_READY="$folder/ready.$number" PROVISION_BENCH_GO="$folder/go" PROVISION_BENCH_TIMES="$folder/times.$number"
export OMP_NUM_THREADS="$threads" MKL_NUM_THREADS="$threads" OPENBLAS_NUM_THREADS="$threads"

if test "$barrier" = start; then
    : >"$PROVISION_BENCH_READY"
    : <"$PROVISION_BENCH_GO"
fi
began=$(date +%s.%N)
case $cores in
    -) "$@" ;;
    *) taskset -c "$cores" "$@" ;;
esac
status=$?
ended=$(date +%s.%N)
# A program that waits at the barrier itself writes its own times.
test -s "$folder/times.$number" && read -r began ended <"$folder/times.$number"
# Renamed, so that the file is complete when cell.sh counts it.
echo "client $number $began $ended $status" >"$folder/new-end.$number"
mv "$folder/new-end.$number" "$folder/end.$number"
