"""The stand-ins for NVIDIA's MPS control daemon and libcuda. Mock hosts run a copy of it."""
