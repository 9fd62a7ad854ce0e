"""The one idea and its loop: a Resource, one exchange with a host, the engine, the fleet."""
