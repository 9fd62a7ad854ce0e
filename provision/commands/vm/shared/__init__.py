"""What the vm commands share."""
