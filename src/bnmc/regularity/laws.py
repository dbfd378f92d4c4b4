"""The exact law of one layer of a linear chain without a skip connection."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from bnmc._support.arguments import finite_array
from bnmc.errors import ArgumentError
from bnmc.regularity.ensembles import Float64Array


def one_step_second_moment(H: ArrayLike) -> Float64Array:
    r"""Mean of ``‖M₊‖_F²`` after one layer without skip connection (γ = ∞), exactly.

    With x = N(W H), uncentred, W of shape (d, d) with i.i.d. Gaussian entries, ``M₊ = x xᵀ / n``
    has ones on its diagonal and elsewhere squared cosines of independent directions, so that

    .. math:: E‖M_+‖_F^2 = d + d (d - 1) \sum_i p_i^2, \qquad
              p_i = E \frac{s_i^2 z_i^2}{\sum_j s_j^2 z_j^2}
              = \int_0^\infty \frac{s_i^2}{1 + 2 t s_i^2} \prod_j (1 + 2 t s_j^2)^{-1/2} dt,

    where s are the singular values of H and z i.i.d. standard normal; the p sum to 1.

    Parameters
    ----------
    H : (..., d, n) array_like
        Representations, of any rank and scale, not zero.  For norm "batch", centre the rows.

    Returns
    -------
    (...) ndarray of float64
        In [2d − 1, d²] for n >= d, to a relative error of about 1e-13.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `H` is not an array of finite real matrices other than zero.

    Notes
    -----
    In log t the integrands are analytic in the strip ``|Im| < π``, so the trapezoidal rule
    converges like exp(−2π²/h) in its step h; it is cut off where less than 1e-17 is left.

    Examples
    --------
    For the identity every p is 1/d.  A matrix of rank one keeps rank one:

    >>> import numpy as np
    >>> from bnmc.regularity import one_step_second_moment
    >>> print(one_step_second_moment(np.eye(4)).round(12), one_step_second_moment(np.ones((4, 4))))
    7.0 16.0
    """
    matrices = finite_array("H", H, shape=(..., "d", "n")).astype(np.float64, copy=False)
    singular = np.linalg.svd(matrices, compute_uv=False)
    largest = singular.max(axis=-1, keepdims=True)
    if (largest <= 0).any():
        raise ArgumentError("H", 0.0, "matrices other than zero")
    spectra = np.square(singular / largest)
    moments: Float64Array = np.empty(spectra.shape[:-1])
    for index in np.ndindex(*moments.shape):
        moments[index] = np.square(_shares(spectra[index])).sum()
    d = matrices.shape[-2]
    moments *= d * (d - 1)
    moments += d
    return moments


def _shares(spectrum: Float64Array) -> Float64Array:
    """P of `one_step_second_moment`, for squares of singular values with the maximum 1."""
    step = 0.4
    t = np.exp(np.arange(-44.0, 84.0, step))[:, None]
    grown = 1 + 2 * t * spectrum
    product = np.exp(-0.5 * np.log(grown).sum(axis=1, keepdims=True))
    shares: Float64Array = step * (t * spectrum / grown * product).sum(axis=0)
    shares /= shares.sum()
    return shares
