"""``bnmc fixed-point``: what it prints."""

import math

import pytest

import bnmc


def test_fixed_point(run, document_of):
    star = bnmc.MeanField(bnmc.Chain(64_000, 64, "tanh")).fixed_point()
    found = document_of("fixed-point", "--activation", "tanh", "--batch", "64")
    assert found["rate"] == star.rate
    assert found["timescale"] == pytest.approx(-1.0 / math.log(star.rate))
    assert found["eigenvalues"] == list(star.eigenvalues)
    status, out, _ = run("fixed-point", "--activation", "tanh", "--batch", "64")
    assert status == 0
    assert f"{star.rate:.6g}" in out
    assert "stable  yes" in out
    # Nothing is remembered, and a rate without a logarithm is null in JSON.
    assert document_of("fixed-point", "--batch", "2")["backward_rate"] == "Infinity"
    assert "eigenvalues λ_L, λ_M  none" in run("fixed-point", "--batch", "2")[1]


def test_an_unstable_fixed_point_is_named(run):
    out = run("fixed-point", "--activation", "silu", "--batch", "40")[1]
    assert "eigenvalues λ_L, λ_M  1.03495, 0.756087" in out
    assert "The fixed point is unstable" in out
    assert "unstable" not in run("fixed-point", "--activation", "silu", "--batch", "8")[1]


@pytest.mark.parametrize(("batch", "infinite"), [(3, True), (4, False)])
def test_an_infinite_backward_rate_is_explained(run, batch, infinite):
    out = run("fixed-point", "--batch", str(batch))[1]
    assert ("the squared gradient norm has no finite mean" in out) == infinite
    assert ("backward rate  infinite" in out) == infinite


def test_a_cross_batch_entry_below_the_error_is_zero(run):
    assert abs(bnmc.MeanField(bnmc.Chain(100, 8, "sin")).fixed_point().cross_batch) < 1e-20
    assert "cross batch  0\n" in run("fixed-point", "--activation", "sin", "--batch", "8")[1]


def test_distance_at_a_width(run, document_of):
    law = bnmc.MeanField(bnmc.Chain(500, 4, "tanh")).fluctuations()
    options = ("fixed-point", "--activation", "tanh", "--batch", "4")
    found = document_of(*options, "--width", "500")
    assert found["distance"] == math.sqrt(law.mean_square(500).value)
    assert found["least_width"] == law.least_width
    assert "distance" not in document_of(*options)
    status, _, err = run(*options, "--width", "0")
    assert status == 2
    assert "width" in err
