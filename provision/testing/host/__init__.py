"""Parts of a mock host: its folder, its processes, its hardware and its boot."""
