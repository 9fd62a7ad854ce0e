# shellcheck shell=sh
# Runs the Python program $1 (programs/probe_client.py) in a worker container, as any program of it runs.
# Prints, last, `attached: …`, `outside: …`, `failed: …` or `unproven: …`.
program=$1

unset CUDA_VISIBLE_DEVICES
for python in python3 python; do
    command -v "$python" >/dev/null 2>&1 || continue
    timeout -k 2 30 "$python" -c "$program" prove
    case $? in
        124 | 137)
            echo 'failed: CUDA gave no answer within 30 s; does a server of another user hold the GPU?'
            ;;
    esac
    exit 0
done
echo 'unproven: the image has no Python to try it with'
