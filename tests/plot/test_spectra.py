"""The spectrum of a layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bnmc
from bnmc import plot
from bnmc.errors import ArgumentError, ArgumentTypeError

CHAIN = bnmc.Chain(40, 4, "linear")


def simulated(**options: Any) -> bnmc.Trajectory:
    given = {"chains": 50, "rng": 0, "observables": ["gram", "eigenvalues", "orthogonality_gap"]}
    return bnmc.simulate(CHAIN, 12, **(given | options))


@pytest.fixture(scope="module")
def run() -> bnmc.Trajectory:
    return simulated()


def test_spectrum_is_of_the_bulk_and_has_its_law(run: bnmc.Trajectory) -> None:
    star = bnmc.MeanField(CHAIN).fixed_point()
    ax = plot.spectrum(run, star=star)
    # Of linear networks with batch norm the ones have the eigenvalue 0, the others the trace.
    bulk = np.linalg.eigvalsh(run.gram[:, -1])[:, 1:].ravel()
    edges = np.array([patch.get_x() for patch in ax.patches])
    heights = [patch.get_height() for patch in ax.patches]
    width = ax.patches[0].get_width()
    counts, _ = np.histogram(bulk, np.append(edges, edges[-1] + width))
    assert abs(counts / (len(bulk) * width) - heights).max() <= 1.01 / (len(bulk) * width)
    assert sum(heights) * width == pytest.approx(1.0)
    law = bnmc.random_matrix.MarchenkoPastur(4 / 40, variance=bulk.mean())
    x, density = ax.lines[0].get_data()
    np.testing.assert_allclose(density, law.pdf(x), rtol=1e-9)
    assert np.trapezoid(density, x) == pytest.approx(1.0, abs=2e-3)
    dashed = [line.get_xdata()[0] for line in ax.lines if line.get_linestyle() == "--"]
    assert dashed == pytest.approx([star.b * (1 - star.c)], abs=1e-11)
    assert ax.get_title() == "linear, batch norm, width 40, batch 4: 50 networks"
    assert ax.get_xlabel() == plot.spectrum(run, layer=12).get_xlabel() == "eigenvalue of $G_{12}$"


def test_spectrum_refuses_what_it_cannot_draw(run: bnmc.Trajectory) -> None:
    for layer in (13, -14, 1.5):
        with pytest.raises((ArgumentError, ArgumentTypeError), match="^layer"):
            plot.spectrum(run, layer=layer)  # type: ignore[arg-type]
    for bad in (3, simulated(observables="eigenvalues"), simulated(reduce="chain")):
        with pytest.raises((ArgumentError, ArgumentTypeError), match="^run"):
            plot.spectrum(bad)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="^star"):
        plot.spectrum(run, star=np.eye(3))
