"""The GPU kernels, compiled by Numba's CUDA target."""
