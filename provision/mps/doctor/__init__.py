"""The checks of mps.doctor."""
