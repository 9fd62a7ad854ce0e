"""The lab: one host laid out as Container-Optimized OS, made of real parts, on a Linux machine with root."""
