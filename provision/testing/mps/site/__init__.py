"""On PYTHONPATH of the Python that containers have: `sitecustomize` is imported by every interpreter."""
