"""Finished parts that are kept while a computation runs: runs in a Zarr store, others in a folder.

The package may import the rest of `simulation` but `starting` and `run`.  Read `parts.py` first,
then `store.py`.
"""
