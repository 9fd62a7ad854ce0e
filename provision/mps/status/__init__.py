"""The status of MPS on a host: one script, and one reader of its answer into one record."""
