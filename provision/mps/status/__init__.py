"""What the MPS daemon and the driver report, as records."""
