"""``bnmc fixed-point``: what it prints; `test_application.py` has the other commands."""

import math

import pytest

import bnmc


def test_fixed_point(printed, document_of):
    star = bnmc.MeanField(bnmc.Chain(64_000, 64, "tanh")).fixed_point()
    line = "fixed-point --activation tanh --batch 64"
    document = document_of(line)
    assert document["chain"] == {"batch": 64, "activation": "tanh", "norm": "batch", "gain": 1.0}
    assert document["rate"] == star.rate
    assert document["timescale"] == pytest.approx(-1.0 / math.log(star.rate))
    assert document["eigenvalues"] == list(star.eigenvalues)
    out = printed(line)
    assert f"{star.rate:.6g}" in out
    assert "stable  yes" in out
    # Nothing is remembered, and a rate without a logarithm is null in JSON.
    assert document_of("fixed-point --batch 2")["backward_rate"] == "Infinity"
    assert "eigenvalues λ_L, λ_M  none" in printed("fixed-point --batch 2")


def test_an_unstable_fixed_point_is_named(printed):
    out = printed("fixed-point --activation silu --batch 40")
    assert "eigenvalues λ_L, λ_M  1.03495, 0.756087" in out
    assert "The fixed point is unstable" in out
    chain = bnmc.Chain(1000, 40, "silu")
    assert bnmc.MeanField(chain).fixed_point().timescale == math.inf
    # At a width the same table has no distance.
    wide = printed("fixed-point --activation silu --batch 40 --width 1000")
    assert wide.replace("distance  none\n", "").startswith(out.partition("\n\nThe fixed")[0])
    assert "distance  none" in wide
    assert "The fixed point is unstable" in wide
    assert "unstable" not in printed("fixed-point --activation silu --batch 8")


@pytest.mark.parametrize(("batch", "infinite"), [(3, True), (4, False)])
def test_an_infinite_backward_rate_is_explained(printed, batch, infinite):
    out = printed(f"fixed-point --batch {batch}")
    assert ("the squared gradient norm has no finite mean" in out) == infinite
    assert ("growth per layer  infinite" in out) == infinite


def test_a_cross_batch_entry_below_the_error_is_zero(printed):
    assert abs(bnmc.MeanField(bnmc.Chain(100, 8, "sin")).fixed_point().cross_batch) < 1e-20
    assert "cross batch  0\n" in printed("fixed-point --activation sin --batch 8")


def test_distance_at_a_width(document_of):
    law = bnmc.MeanField(bnmc.Chain(500, 4, "tanh")).fluctuations()
    line = "fixed-point --activation tanh --batch 4"
    document = document_of(f"{line} --width 500")
    assert document["distance"] == math.sqrt(law.mean_square(500).value)
    assert document["least_width"] == law.least_width
    assert "distance" not in document_of(line)
