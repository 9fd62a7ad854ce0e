"""The checks of `mps.doctor`.

To add a check:

1. Write a function `Evidence -> Finding` in the module of its subject: container_checks.py,
   driver_checks.py, directory_checks.py, daemon_checks.py, client_checks.py, share_checks.py or
   pipeline_checks.py.
2. Add a line to `CHECKS` in checks.py: number, name, the checks that it depends on, the function.
3. Where it needs something new from the host, print it in inside_container.sh (in the worker
   container), worker_container.sh or gpu_processes.sh (on the host); evidence.py reads it. What the
   daemon itself reports is in the record of provision/mps/status/status.py.
4. Add an `[[case]]` to tests/data/mps/doctor/cases.toml for each of its findings.
5. Add a row to the table of checks in docs/mps.md.
"""
