"""MPS on the hosts: planned, switched, watched, judged and measured."""
