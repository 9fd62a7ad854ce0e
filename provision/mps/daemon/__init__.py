"""The MPS control daemon in its container and the compute mode of the GPU, as resources. Pure.

enable.sh and disable.sh run on the host; they run enable_in_container.sh, prove.sh and the others
in the containers.
"""
