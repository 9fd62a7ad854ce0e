"""The benchmark of one GPU with and without MPS: grid, cells, chart, report."""
