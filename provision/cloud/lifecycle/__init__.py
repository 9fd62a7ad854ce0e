"""The life cycle of a VM: created, waited for, extended, deleted; orphans found and removed."""
