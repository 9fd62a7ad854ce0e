"""Benchmarks: whole processes against OpenSSH servers, compared with the floor of plain ssh."""
