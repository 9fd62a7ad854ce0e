"""What several mps tasks use: the fetch of the status, its report, and the users of the GPU."""
