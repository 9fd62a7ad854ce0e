"""What the inventory commands share."""
