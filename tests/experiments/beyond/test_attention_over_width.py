"""Transformers of GPT's shapes beside the laws of their attention, gradient and loss."""

import math

import numpy as np
from figure_sizes import FIGURES
from numpy.testing import assert_allclose
from scipy.stats import entropy

from bnmc.experiments.beyond import attention_over_width

FIGURE = "gpt-sizes"

LENGTH, NETWORKS = FIGURES[FIGURE].sizes["length"], FIGURES[FIGURE].sizes["chains"]


def test_laws(data):
    width = data["width"].values
    assert width.tolist() == [768, 2560]
    variances = {
        "PyTorch": 1 / (3 * width),
        "GPT-2": 0.02**2,
        "width-scaled": 0.02**2 * 768 / width,
    }
    for rule, variance in variances.items():
        part, square = data.sel(rule=rule), variance * width
        embedded = 2.0 if rule == "PyTorch" else 2.0 * variance
        assert_allclose(part["deviation_law"], square * embedded / (embedded + 1e-5))
        assert_allclose(part["loss_law"], math.log(50_257) + square / 2)


def test_attention_has_the_laws(data):
    """Five standard errors of 12 heads with 48 independent logits each, relative 1/√(2 · 576)."""
    assert_allclose(data["deviation"], data["deviation_law"], rtol=5 * 0.03 / NETWORKS**0.5)
    # The number that a small deviation s leaves is exp(−s²/2) of all: its error is s² times that
    # of s, .03 for s = 1.
    assert_allclose(data["attended"], data["attended_law"], rtol=5 * 0.03 / NETWORKS**0.5)
    heads = data["head"]
    assert_allclose(heads.sum("key"), 1.0)
    assert (heads.where(heads["key"] > heads["query"], 0.0) == 0).all()


def test_loss_and_gradient_have_the_laws(data):
    """The logits of targets are normal; the gradient has the norm σ√d / (√tokens · rms)."""
    square = 2 * (data["loss_law"] - math.log(50_257))
    error = np.sqrt(square / (LENGTH * NETWORKS))
    assert (abs(data["loss"] - data["loss_law"]) < 5 * error).all()
    state, gradient = (data[name].isel(block=-1) for name in ("state", "gradient"))
    # Lengths of rows of the head: relative 1/√(2 · 768 · tokens); rms differ between networks.
    assert_allclose(gradient, np.sqrt(square / LENGTH) / state, rtol=0.1)


def test_entropies():
    logits = np.random.default_rng(0).standard_normal((3, 5)) * 40
    weights = np.exp(logits)
    assert_allclose(attention_over_width._entropies(logits), entropy(weights, axis=-1))


def test_blocks_are_at_most_those_of_the_shape():
    made = attention_over_width._pass("GPT-2", "GPT-2", 14, 2, np.random.default_rng(0))
    for name in ("state", "gradient"):
        assert np.isfinite(made[name][:13]).all()
        assert np.isnan(made[name][13:]).tolist() == [True] * 2
