"""Runs kept in a Zarr store while they go.

The package may import the rest of `simulation` but `plan` and `run`.  Read `store.py` first.
"""
