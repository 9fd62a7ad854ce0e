"""VMs: offered, made, listed, stopped, deleted and swept up after; and the hosts that they are."""
