"""Divergences of logits: the NTK limit, jackknife errors, and small ensembles."""

import numpy as np
import pytest

from bnmc.experiments.limits import logit_laws
from bnmc.experiments.limits.ensembles import standardized, train_ensemble, two_classes

FIGURE = "limits-kl"


def test_the_kernel_limit_is_that_of_wide_networks():
    """Means over 40 networks of width 1024 against 4000 draws of the limit, at all steps.

    The mean of 40 networks has a standard error of σ/√40 for each of 16 images; 6 of them, and
    0.05 for the next order in the width.
    """
    inputs = standardized(two_classes(None, 16, 16, (0, 1)))
    sizes = logit_laws.Sizes(reference=16, reference_chains=4000, steps=(0, 4, 12), rate=0.5)
    told = []
    limit = logit_laws._kernel_limit(
        inputs, sizes, np.random.default_rng(0), lambda done, total: told.append((done, total))
    ).transpose(1, 2, 0)
    assert told == [(step, 13) for step in range(13)]
    outputs = train_ensemble(
        "ntk", inputs.train, inputs.labels, sizes.steps, chains=40,
        rng=np.random.default_rng(3), threads=1, progress=lambda done, total: None, width=1024,
        reference_width=16, learning_rate=0.5, test=inputs.test,
    ).test_outputs  # fmt: skip
    spread = limit.std(axis=0)
    gap = np.abs(outputs.mean(axis=0) - limit.mean(axis=0))
    allowed = 6 * spread / np.sqrt(40) + 0.05
    assert (gap < allowed).all()
    # Training moves most means by more than twice of this.
    assert np.mean(np.abs(limit.mean(axis=0)[2]) > 2 * allowed[2]) > 0.8
    # Variances of 40 normals have a relative error of √(2/39) = .23.
    ratio = outputs.var(axis=0, ddof=1) / spread**2
    assert (ratio > 0.25).all()
    assert (ratio < 2.8).all()


def test_jackknife_of_means():
    """Of a difference of means it is the usual standard error, for groups of single networks."""
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal(9), rng.standard_normal(15) + 3.0
    left_a = np.array([np.delete(a, k).mean() - b.mean() for k in range(9)])
    left_b = np.array([a.mean() - np.delete(b, k).mean() for k in range(15)])
    difference = logit_laws._jackknifed(a.mean() - b.mean(), left_a, left_b)
    assert difference.stderr == pytest.approx(np.sqrt(a.var(ddof=1) / 9 + b.var(ddof=1) / 15))
    assert difference.n == 9


def test_groups_are_equal_and_cover_the_sample():
    sample = np.arange(100)
    parts = logit_laws._without_groups(sample)
    assert len(parts) == 25
    left = [np.setdiff1d(sample, part) for part in parts]
    np.testing.assert_array_equal(np.concatenate(left), sample)
    assert {len(other) for other in left} == {4}


def test_extrapolation_and_difference():
    """2 D(d) − D(d/2), with the errors of independent ensembles and of the shared reference."""
    rng = np.random.default_rng(3)
    other, wide, narrow = (
        logit_laws._Compared(rng.random(2), rng.random((5, 2)), rng.random((7, 2)))
        for _ in range(3)
    )
    limit = logit_laws._combined((2.0, wide), (-1.0, narrow))
    assert limit.value == pytest.approx(2 * wide.values[1] - narrow.values[1])
    gap = logit_laws._combined((1.0, other), (-2.0, wide), (1.0, narrow))
    assert gap.value == pytest.approx(other.values[1] - limit.value)
    shared = other.references - 2 * wide.references + narrow.references
    variance = 6 * np.var(shared[:, 1]) + 4 * (
        np.var(other.limits[:, 1]) + 4 * np.var(wide.limits[:, 1]) + np.var(narrow.limits[:, 1])
    )
    assert gap.stderr == pytest.approx(np.sqrt(variance))


def test_before_training(figure):
    """NTK has the law of the reference, and mean field half of the logarithm of the width."""
    start = figure.data["divergence"].sel(step=0)
    reach = figure.data["divergence_high"].sel(step=0) - start
    theory = 0.5 * (16 / 64 - 1 + np.log(64 / 16))
    field = start.sel(scaling="mean-field", width=64)
    assert abs(float(field) - theory) < 3 * float(reach.sel(scaling="mean-field", width=64))
    assert abs(float(start.sel(scaling="ic-mf", width=64))) < 0.5
    assert f"theory {theory:.3g}" in figure.findings[0]


def test_all_networks_learn(data):
    assert (data["error"].sel(step=40) < data["error"].sel(step=0)).all()
