"""The lab: a host that is laid out as Container-Optimized OS, with real sshd, mounts and Docker."""
