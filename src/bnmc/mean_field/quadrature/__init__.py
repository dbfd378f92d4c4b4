"""Integrals over spheres and Gaussians, with an error estimate.

Read `sphere.py` first.
"""
