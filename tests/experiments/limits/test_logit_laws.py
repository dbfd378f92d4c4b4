"""Divergences of logits: the NTK limit, jackknife errors, and small ensembles."""

import numpy as np

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
