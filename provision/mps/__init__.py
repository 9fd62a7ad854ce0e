"""NVIDIA MPS: one GPU shared by many processes. Pure: scripts, and readers of what they print.

status/ asks the daemon and reads its answers into one record, `MpsStatus`. daemon/ starts and stops
it as a resource. doctor/ checks everything that it depends on. plan/ computes limits, bench/
measures them, and explain.py knows what error texts mean. The `.sh` files beside this module are
functions for scripts that run inside a container.
"""
