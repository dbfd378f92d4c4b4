"""Verdicts: which sentence for which numbers."""

import numpy as np
import pytest

from bnmc.torch.verdicts import Findings, verdict


def findings(
    *, norms=None, rank=64, soft=(64, 60), correlation=0.3, most=64, first=64, threshold=1e-5
):
    def row(*values):
        return np.array([values], dtype=float)

    return Findings(
        gradient_norms=None if norms is None else row(*norms), rank=row(first, rank),
        soft_rank=row(*soft), mean_correlation=row(0.1, correlation), most=np.array([64, most]),
        view="sample", threshold=threshold,
    )  # fmt: skip


def test_sentences():
    grown = 3000.0 ** (-np.arange(40) / 39)
    assert verdict(findings(norms=grown, rank=63)) == (
        "Gradients explode towards the input: squared norms grow by the factor 1.51 per layer, so "
        "norms by ×3e+03 over 40 layers. The rank keeps 63 of 64 over 2 layers."
    )
    assert "Gradients vanish towards the input: squared norms change by the factor 0.6" in verdict(
        findings(norms=1.0 / grown)
    )
    assert verdict(findings(norms=(2.0, 1.0))).startswith(
        "Gradients are stable: squared gradient norms change by the factor 4 per layer"
    )
    assert "norms by ×10^261 over" in verdict(findings(norms=(1e300, 1e39)))
    assert "is zero" in verdict(findings(norms=(1.0, 0.0)))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "The rank keeps 64 of 64 over 2 layers."),
        ({"soft": (60, 29), "rank": 40}, "The samples collapse: the soft rank goes from 60 to 29"),
        ({"correlation": 0.96}, "mean correlation 0.96 (rank 64 of 64)."),
        ({"correlation": np.nan}, "The rank keeps"),
        ({"rank": 0}, "The last layer is zero for all samples."),
        ({"rank": 16, "soft": (40, 12), "most": 16}, "The rank keeps 16 of 16 over 2 layers."),
        ({"threshold": 0.1}, "The rank keeps 64 of 64 over 2 layers."),
        ({"rank": 31}, "The rank falls from 64 to 31 of 64 over 2 layers."),
        ({"rank": 32}, "The rank keeps 32 of 64 over 2 layers."),
        (
            {"rank": 1, "first": 1, "soft": (22, 20), "threshold": 0.5},
            "The soft rank goes from 22 to 20 over 2 layers. The precision is too low for a rank.",
        ),
        (
            {"rank": 1, "first": 1, "soft": (22, 2), "threshold": 0.5},
            "The samples collapse: the soft rank goes from 22 to 2 over 2 layers, mean correlation "
            "0.3.",
        ),
    ],
)
def test_ranks(options, said):
    assert said in verdict(findings(**options))


def test_one_layer():
    one = Findings(
        gradient_norms=None, rank=np.array([[3]]), soft_rank=np.array([[3]]),
        mean_correlation=np.array([[0.1]]), most=np.array([3]), view="sample", threshold=1e-5,
    )  # fmt: skip
    assert verdict(one) == "The rank keeps 3 of 3 in 1 layer."
