"""mps.bench: the benchmark of MPS on the user's own GPU."""
