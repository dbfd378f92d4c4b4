"""The scalar functions of `scalar`, compiled for the device."""

from __future__ import annotations

from bnmc._kernels.gpu.device import device_module
from bnmc._kernels.scalar import cholesky, measures, moments, normal, philox, scaling

_cholesky = device_module(cholesky)
_measures = device_module(measures)
_moments = device_module(moments)
_normal = device_module(normal)
_scaling = device_module(scaling)

philox4x32 = device_module(philox).philox4x32

root32, radius64, sincos64 = _normal.root32, _normal.radius64, _normal.sincos64
uniform32, uniform64 = _normal.uniform_32, _normal.uniform64

scale_of = _cholesky.scale_of
shift_of, shift_of_square = _scaling.shift_of, _scaling.shift_of_square

merged_mean, squares_between = _moments.merged_mean, _moments.squares_between
variance_of, is_flat = _moments.variance_of, _moments.is_flat

measured_entry = _measures.entry_of
measured_square = _measures.square_of
measured_number = _measures.number_of
