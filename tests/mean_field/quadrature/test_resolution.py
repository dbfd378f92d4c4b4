"""Panels that resolve functions with corners and jumps."""

import numpy as np
import pytest

from bnmc.mean_field.quadrature.resolution import UnresolvedError, _outstanding, resolve


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


@pytest.mark.parametrize("is_low", [True, False])
def test_resolve_sees_features_near_the_ends_of_a_panel(is_low):
    """A hat between the rim of a panel, at 1e-9 of it, and the first node, at 3e-3 of it."""
    mesh = resolve(np.tanh, 5.0, ())
    length = mesh[1] - mesh[0]
    end, sign = (mesh[0], 1.0) if is_low else (mesh[1], -1.0)

    def hat(x):
        share = sign * (x - end) / length
        return np.maximum(0.0, 1.0 - np.abs(share - 3e-5) / 2.9e-5) + np.tanh(x)

    breaks = resolve(hat, 5.0, ())
    for share in (1e-6, 3e-5, 5.9e-5):
        assert np.abs(breaks - (end + sign * share * length)).min() < 1e-9


def test_resolve_takes_400_panels_and_no_more():
    """The last panel has exp(4y), for −1 <= y <= 1: halves of it are resolved, it is not."""

    def panels_with_one_halved(count):
        ends = np.linspace(-0.5, 0.5, count + 1)
        middle, half = 0.5 * (ends[-1] + ends[-2]), 0.5 * (ends[-1] - ends[-2])

        def last(x):
            return np.where(x > ends[-2], np.exp(np.minimum(4.0 * (x - middle) / half, 4.0)), 0.0)

        return resolve(last, 0.5, ends[1:-1]).size - 1

    assert panels_with_one_halved(399) == 400
    with pytest.raises(UnresolvedError, match="needs more than 400 panels"):
        panels_with_one_halved(400)


def test_resolve_gives_up_on_noise():
    rng = np.random.default_rng(0)
    with pytest.raises(UnresolvedError, match="panels"):
        resolve(lambda x: rng.random(x.shape), 3.0, ())
    with pytest.raises(UnresolvedError, match="finite"):
        resolve(lambda x: np.where(x > 2.9, np.inf, 0.0), 3.0, ())


# --- Places where a fine grid shows a sudden change of an activation


@pytest.mark.parametrize("place", [1, 2, 500, 1023, 1024, 1025, 1026, 2500, 3000 - 2])
@pytest.mark.parametrize("share", [-0.3, 0.0, 0.3])
def test_the_point_of_the_grid_next_to_a_kink_stands_out(place, share):
    """In all stretches, and at both ends of the grid.

    The second differences of |x − kink| are 2 (1 − t) and 2 t at the points next to the kink, if it
    is at the fraction t of the way from one to the other.
    """
    index = np.arange(3000.0)
    result = _outstanding(np.abs(index - (place + share)))
    assert place in result
    # Two stretches overlap, or share the kink, so both of its neighbours may stand out.
    assert set(result) <= {place - 1, place, place + 1}


def test_nothing_stands_out_of_a_parabola_or_of_rounding():
    index = np.arange(3000.0)
    assert _outstanding(index**2) == []
    assert _outstanding(np.full(3000, 0.1)) == []
