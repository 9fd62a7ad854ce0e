"""What the mps commands share."""
