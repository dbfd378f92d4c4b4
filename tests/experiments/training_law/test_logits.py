"""Divergences of logits by `bnmc.train`, beside those of drawn networks of the lectures."""

import numpy as np
import pytest

from bnmc.experiments.kit import Run
from bnmc.experiments.limits.divergences import Compared
from bnmc.experiments.limits.ensembles import standardized, train_ensemble, two_classes
from bnmc.experiments.training_law import logits

FIGURE = "training-limits"


# The networks are those of `training/test_course.py`, whose steps are those of PyTorch.
@pytest.mark.slow
@pytest.mark.parametrize("scaling", ["default", "mean-field"])
def test_laws_of_the_figure_of_drawn_networks(scaling):
    """One hidden layer: means and variances of logits, and D, are those of `limits-kl`.

    300 networks a side: means of 8 images within 6 standard errors, ratios of variances within
    6 √(4/300) = .7 in logarithms, and D within 6 of its jackknife's errors; p < 1e-7 together.
    """
    images = standardized(two_classes(None, 8, 8, (0, 1)))
    sizes = logits._Sizes(reference=16, rate=0.2, steps=12)
    run = Run("training-limits", {}, rng=3)

    def silent(done, total):
        pass

    def drawn_logits(name, width):
        return train_ensemble(
            name, images.train, images.labels, (12,), chains=300, rng=run.generator, threads=1,
            progress=silent, width=width, reference_width=16, learning_rate=0.2, test=images.test,
        ).test_outputs  # fmt: skip

    ours = logits.trained_logits(
        scaling, images, sizes, run, silent, hidden=1, width=48, chains=300
    )
    theirs, reference = drawn_logits(scaling, 48), drawn_logits("ntk", 16)
    assert ours.shape == theirs.shape == (300, 1, 8)
    spread = np.sqrt((ours.var(axis=0) + theirs.var(axis=0)) / 300)
    assert (np.abs(ours.mean(axis=0) - theirs.mean(axis=0)) < 6 * spread).all()
    assert (np.abs(np.log(ours.var(axis=0) / theirs.var(axis=0))) < 0.7).all()
    first, second = (Compared.of(each, reference).at(0) for each in (ours, theirs))
    assert abs(first.value - second.value) < 6 * np.hypot(first.stderr, second.stderr)


def test_default_diverges_and_ntk_does_not(data):
    last = data["divergence"].isel(width=-1)
    assert (last.sel(scaling="default") > last.sel(scaling="ntk")).all()
    assert np.isfinite(data["divergence"].sel(hidden=1)).all()
