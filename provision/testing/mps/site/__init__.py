"""A folder on PYTHONPATH of containers: every interpreter imports its `sitecustomize`."""
