# shellcheck shell=sh disable=SC2154
# As root, creates the folders of MPS so that a container's other user may write to them.
# Reads $R, $notes and the directories of MPS.
#
# `/run` and new volumes belong to root. The daemon runs as the user of the programs, since a server
# serves one user.
take_lock
create_directories
chmod 0777 "$notes" "$R$CUDA_MPS_PIPE_DIRECTORY"
if grep -qxF "$R$CUDA_MPS_LOG_DIRECTORY" "$notes/made" ||
    test -z "$(ls -A "$R$CUDA_MPS_LOG_DIRECTORY")"; then
    chmod 0777 "$R$CUDA_MPS_LOG_DIRECTORY"
fi
