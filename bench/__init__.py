"""Benchmarks: whole processes against real OpenSSH servers, side by side with a floor that no tool can go below."""
