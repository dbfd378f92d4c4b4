"""Runs of other kinds than `Trajectory`, which have its attributes."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import bnmc
from bnmc import plot
from bnmc.errors import ArgumentTypeError
from bnmc.plot.protocols import as_run, is_run

CHAIN = bnmc.Chain(40, 4)


def made(**changes):
    grams = np.random.default_rng(0).random((6, 3, 4, 4))
    attributes = {
        "chain": CHAIN, "chains": 6, "layers": np.arange(3), "moments": {},
        "observables": {"gram": grams @ grams.swapaxes(-1, -2)},
        "dims": {"gram": ("chain", "layer", "sample_i", "sample_j")},
    }  # fmt: skip
    return SimpleNamespace(**attributes | changes)


def test_an_object_with_the_attributes_is_drawn():
    run = made()
    ax = plot.trajectory(run, star=np.eye(4))
    distance = bnmc.gram.distance(run.observables["gram"], np.eye(4))
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), distance.mean(axis=0))
    assert plot.spectrum(run).get_xlabel() == "eigenvalue of $G_{2}$"


class Refusing:
    def __getattr__(self, name):
        raise RuntimeError(name)


@pytest.mark.parametrize("name", ["chain", "chains", "layers", "moments", "observables", "dims"])
def test_an_object_that_lacks_an_attribute_is_no_run(name):
    run = made()
    assert as_run("run", run) is run
    delattr(run, name)
    with pytest.raises(ArgumentTypeError, match="^run: .*allowed: a Trajectory$"):
        plot.spectrum(run)


def test_an_object_that_raises_is_no_run():
    assert not is_run(Refusing())
    with pytest.raises(ArgumentTypeError, match="^runs"):
        plot.trajectory(Refusing())


def test_pictures_import_no_simulation():
    script = "import sys, bnmc.plot; assert not [n for n in sys.modules if 'bnmc.simul' in n]"
    subprocess.run([sys.executable, "-c", script], check=True)
