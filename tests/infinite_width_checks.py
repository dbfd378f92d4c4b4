"""Laws of batches and checks of estimated kernels for the tests of `bnmc.infinite_width`."""

import numpy as np

from bnmc import Chain
from bnmc.infinite_width.batch_integrals import batch_law


def law_of(covariance, samples=None):
    """Return the law of the rows of a batch in a first layer; by default all rows are samples."""
    chain = Chain(1, samples or len(covariance), "relu")
    return batch_law(chain.layers[1].rows, covariance, 0, "x")


def extrapolated(narrow, wide):
    """Return the mean kernel and its standard error in the limit of infinite width.

    The means m of networks of finite width d differ from it by O(1/d), which 2 m(2d) − m(d)
    removes.
    """
    mean = 2.0 * wide.mean() - narrow.mean()
    return mean, np.hypot(2.0 * wide.stderr(), narrow.stderr())


def assert_unbiased(estimates, exact):
    """Assert that the mean of 16 estimates of a matrix is the exact one, and that it is accurate.

    If all entries had one common error, its quotient by the standard error would be t-distributed
    with 15 degrees of freedom: |t| > 10 has probability 5e-8.
    """
    off = np.linalg.norm(np.mean(estimates, axis=0) - exact)
    stderr = np.linalg.norm(np.std(estimates, axis=0, ddof=1)) / 4.0
    assert len(estimates) == 16
    assert off < 10.0 * stderr
    assert stderr < 0.02 * np.linalg.norm(exact)


def derivatives(function, arrays):
    """Return the derivatives of an analytic function in the entries of each of its arrays.

    By a complex step h they are Im f(x + ih)/h, to rounding.  Their first axes are the array's.
    """
    parts = []
    for number, array in enumerate(arrays):
        part = []
        for at in np.ndindex(array.shape):
            moved = [each.astype(np.complex128) for each in arrays]
            moved[number][at] += 1e-30j
            part.append(function(moved).imag / 1e-30)
        parts.append(np.reshape(part, (*array.shape, *np.shape(part[0]))))
    return parts
