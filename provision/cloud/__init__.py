"""Compute Engine VMs: what is offered, at what price, and how VMs are made, kept and deleted."""
