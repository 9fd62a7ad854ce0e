"""The stand-in for NVIDIA's MPS control daemon. Like the docker stand-in, a copy of it runs with an isolated interpreter."""
