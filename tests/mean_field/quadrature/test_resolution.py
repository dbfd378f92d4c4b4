"""Panels that resolve functions with corners and jumps."""

import numpy as np
import pytest

from bnmc.mean_field.quadrature.resolution import UnresolvedError, resolve


def test_resolve_puts_breaks_at_kinks():
    def bent(x):
        return np.abs(x - 0.123456789) + np.maximum(x + 1.5, 0) ** 2

    breaks = resolve(bent, 5.0, ())
    # 8 ends of the mesh, 1 at the corner, a few that close in on the jump of the second derivative.
    assert breaks.size < 30
    assert np.abs(breaks - 0.123456789).min() < 1e-9
    assert np.abs(breaks + 1.5).min() < 1e-4
    assert resolve(bent, 5.0, (0.123456789, -1.5)).size == 10
    assert (breaks[0], breaks[-1]) == (-5.0, 5.0)
    assert np.all(np.diff(breaks) > 0)


@pytest.mark.parametrize("fraction", [1e-5, 1e-3, 0.999])
def test_resolve_sees_kinks_near_the_ends_of_a_panel(fraction):
    mesh = resolve(np.tanh, 5.0, ())
    kink = mesh[2] + fraction * (mesh[3] - mesh[2])
    breaks = resolve(lambda x: np.maximum(x - kink, 0), 5.0, ())
    assert np.abs(breaks - kink).min() < 1e-9


def test_resolve_gives_up_on_noise():
    rng = np.random.default_rng(0)
    with pytest.raises(UnresolvedError, match="panels"):
        resolve(lambda x: rng.random(x.shape), 3.0, ())
    with pytest.raises(UnresolvedError, match="finite"):
        resolve(lambda x: np.where(x > 2.9, np.inf, 0.0), 3.0, ())
