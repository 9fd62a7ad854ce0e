"""The MPS control daemon in its container, and the compute mode of the GPU, as resources. Pure."""
