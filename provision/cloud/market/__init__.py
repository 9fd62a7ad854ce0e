"""GPU and machine types, prices, offers, quotas, and the order of zones. Pure."""
