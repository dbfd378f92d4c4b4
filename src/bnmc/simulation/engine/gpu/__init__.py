"""Samplers on GPUs: chains divided among devices, copies that overlap with kernels.

Nothing here is imported unless a GPU is asked for.  Read `samplers.py` first.
"""
