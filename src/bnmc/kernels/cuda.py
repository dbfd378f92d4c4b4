"""Device functions for CUDA kernels of your own (extras ``cuda12``, ``cuda13``).

Each function of this module returns a device function, to be called in a kernel under
``numba.cuda.jit``. Device functions run in one thread, allocate nothing and raise nothing. Their
random numbers equal those of `bnmc.kernels` at the same address, up to rounding.

The generator makes four numbers at a time, for the rows of a *quad*. Quad q consists of the rows
``64 * (q // 16) + q % 16 + 16 * j`` for j = 0, 1, 2, 3.

Examples
--------
>>> from numba import cuda as numba_cuda
>>> from bnmc.kernels import cuda
>>> four = cuda.normals("float32")
>>> @numba_cuda.jit
... def fill(out, layer, stream, key0, key1):
...     quad = numba_cuda.grid(1)
...     if quad < out.shape[0]:
...         a, b, c, d = four(0, quad, layer, stream, key0, key1)
...         out[quad, 0], out[quad, 1], out[quad, 2], out[quad, 3] = a, b, c, d
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from bnmc._kernels.gpu.device import cuda as numba_cuda
from bnmc._kernels.gpu.device import device_function
from bnmc._kernels.scalar import normal
from bnmc._kernels.scalar.codes import ZERO_VARIANCE
from bnmc._kernels.scalar.philox import philox4x32
from bnmc._support.arguments import choice, precision
from bnmc.chain.activations import Activation
from bnmc.chain.norms import ROW_NORMS, as_norm
from bnmc.kernels import values
from bnmc.kernels.checks import OK

__all__ = ["activation", "normalise_activate_row", "normals", "philox", "uniforms"]


def philox() -> Any:
    """Return ``philox(c0, c1, c2, c3, k0, k1) -> four words``.

    Returns
    -------
    device function
        `bnmc.kernels.philox` on the device.

    Examples
    --------
    >>> from bnmc.kernels.cuda import philox
    >>> words = philox()
    """
    return device_function(philox4x32)


def normals(dtype: DTypeLike) -> Any:
    """Return ``normals(element, quad, layer, stream, key0, key1) -> four normals``.

    Parameters
    ----------
    dtype : {"float64", "float32"}
        Precision of the normals.

    Returns
    -------
    device function
        Its arguments are the column of the random matrix, the number of the quad, the layer,
        ``stream``, and the low and high 32-bit words of the key. ``stream`` is a
        `bnmc.kernels.Stream` plus the number of the chain.

    Raises
    ------
    ArgumentTypeError, UnknownNameError
        If `dtype` is not allowed.

    Examples
    --------
    >>> from bnmc.kernels.cuda import normals
    >>> four = normals("float64")
    """
    return _of_precision(normal.normals, dtype)


def uniforms(dtype: DTypeLike) -> Any:
    """Return ``uniforms(element, quad, layer, stream, key0, key1) -> four numbers``.

    Parameters
    ----------
    dtype : {"float64", "float32"}
        Precision of the numbers.

    Returns
    -------
    device function
        It takes the arguments of `normals`, and returns numbers that are uniform on (0, 1).

    Raises
    ------
    ArgumentTypeError, UnknownNameError
        If `dtype` is not allowed.

    Examples
    --------
    >>> from bnmc.kernels.cuda import uniforms
    >>> four = uniforms("float64")
    """
    return _of_precision(normal.uniforms, dtype)


def activation(spec: str | Activation | Callable[[Any], Any], dtype: DTypeLike) -> Any:
    """Return an activation as a function of one number.

    Parameters
    ----------
    spec : str, Activation or callable
        As in `bnmc.Chain`.
    dtype : {"float64", "float32"}
        Precision of the argument and the result.

    Returns
    -------
    device function
        ``activation(number) -> number``.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed.

    Examples
    --------
    >>> from bnmc.kernels.cuda import activation
    >>> tanh = activation("tanh", "float32")
    """
    return device_function(values.activation(spec).functions[precision(dtype)])


def normalise_activate_row(
    spec: str | Activation | Callable[[Any], Any], norm: str, dtype: DTypeLike
) -> Any:
    """Return ``row(h, out, eps) -> status``, which normalizes and activates a row of one batch.

    Parameters
    ----------
    spec : str, Activation or callable
        The activation σ, as in `bnmc.Chain`.
    norm : {"batch", "batch-uncentred", "none"}
        The normalization N, as in `bnmc.Chain`.
    dtype : {"float64", "float32"}
        Precision of ``h`` and ``out``.

    Returns
    -------
    device function
        It writes σ(N(h)) to ``out`` and returns 0, a `bnmc.kernels.Status`. If ``h`` has no
        variance, it writes nothing and returns 1, ZERO_VARIANCE. ``h`` and ``out`` are
        one-dimensional arrays, and may be the same one; ``eps`` is added to the variance.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed.

    Examples
    --------
    >>> from bnmc.kernels.cuda import normalise_activate_row
    >>> row = normalise_activate_row("relu", "batch", "float32")
    """
    kind = precision(dtype)
    return _row(activation(spec, kind), choice("norm", norm, ROW_NORMS), kind)


def _of_precision(function: Any, dtype: DTypeLike) -> Any:
    """Return the device function of a precision."""
    return device_function(function.double if precision(dtype) == "float64" else function.single)


@cache
def _row(sigma: Any, norm: str, dtype: str) -> Any:
    number: Any = np.float64 if dtype == "float64" else np.float32
    unit = 2.0**-52 if dtype == "float64" else 2.0**-23
    normalization = as_norm(norm)
    normed, centred = not normalization.is_identity, normalization.centred

    @numba_cuda.jit(device=True)
    def row(h, out, eps):
        batch = h.shape[0]
        mean, scale = number(0.0), number(1.0)
        if normed:
            if centred:
                for i in range(batch):
                    mean = number(mean + h[i])
                mean = number(mean / number(batch))
            variance = number(0.0)
            for i in range(batch):
                deviation = number(h[i] - mean)
                variance = number(variance + number(deviation * deviation))
            variance = number(variance / number(batch))
            # As in `_kernels.cpu`: the rounded mean of equal entries may differ from them.
            rounding = number((batch * unit) * (batch * unit))
            if eps == 0.0 and not variance > rounding * number(mean * mean):
                return ZERO_VARIANCE
            scale = number(number(1.0) / number(sqrt(number(variance + number(eps)))))
        for i in range(batch):
            out[i] = sigma(number(number(h[i] - mean) * scale))
        return OK

    return row
