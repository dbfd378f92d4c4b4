"""The maps of convolutions, against their formulas."""

import numpy as np
import pytest

from bnmc._kernels.cpu import sources

#: What two taps see from three columns; one of them sees a column twice.
NEIGHBOURS = np.array([[0, 1, 2], [2, 0, 2]])
BODIES = pytest.mark.parametrize("python", [False, True], ids=["compiled", "python"])


def body_of(kernel, python):
    return kernel.py_func if python else kernel


@BODIES
def test_entries_are_averaged_over_the_taps(python):
    rows = np.random.default_rng(0).standard_normal((2, 5, 3))
    for gram in np.swapaxes(rows, 1, 2) @ rows:
        out = np.full_like(gram, np.nan)
        body_of(sources.average_taps, python)(gram, NEIGHBOURS, out)
        expected = np.mean([gram[tap][:, tap] for tap in NEIGHBOURS], axis=0)
        np.testing.assert_allclose(out, expected, rtol=1e-15)
        np.testing.assert_array_equal(out, out.T)


@BODIES
def test_a_tap_sees_its_neighbour(python):
    a = np.arange(12.0).reshape(3, 4)
    out = np.full((4, 8), -1.0)
    body_of(sources.unfold, python)(a, NEIGHBOURS, 3, out)
    np.testing.assert_array_equal(out[:3, :3], a[[0, 1, 2], :3])
    np.testing.assert_array_equal(out[:3, 3:6], a[[2, 0, 2], :3])
    assert (out[3] == -1.0).all()
    assert (out[:, 6:] == -1.0).all()
