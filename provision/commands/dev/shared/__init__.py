"""What the dev commands share."""
