# shellcheck shell=sh disable=SC2034
# For scripts inside a container: where MPS keeps its files, and the variables of a process.
R=${PROVISION_MOCK_ROOT-}
pipe=$CUDA_MPS_PIPE_DIRECTORY
notes=$R/run/provision-mps

environment_of() { { tr '\0' '\n' <"/proc/$1/environ"; } 2>/dev/null; }
variable_of() { environment_of "$1" | sed -n "s/^$2=//p"; }
