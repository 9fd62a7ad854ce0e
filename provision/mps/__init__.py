"""NVIDIA MPS as text and numbers: what its tools print, what a plan follows from, what a fault means. Pure."""
