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
    assert "eigenvalues  none" in run("fixed-point", "--batch", "2")[1]


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
