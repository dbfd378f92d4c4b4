"""``bnmc width``: what it prints."""

import bnmc


def test_width(run, document_of):
    law = bnmc.MeanField(bnmc.Chain(500, 4, "tanh")).fluctuations()
    options = ("width", "--activation", "tanh", "--batch", "4")
    found = document_of(*options, "--distance", "0.05")
    assert found["width"] == law.width_for(0.05)
    assert found["least_width"] == law.least_width
    status, out, _ = run(*options, "--distance", "0.05")
    assert status == 0
    assert out.strip().endswith(f"at width {law.width_for(0.05)}")
    assert f"hold from width {law.least_width} on" in run(*options, "--distance", "2")[1]


def test_norm_over_the_features(run, document_of):
    options = ("width", "--norm", "layer", "--batch", "4", "--activation")
    chain = bnmc.Chain(500, 4, "tanh", norm="layer")
    found = document_of(*options, "tanh", "--distance", "0.05")
    assert found["width"] == bnmc.MeanField(chain).fluctuations().width_for(0.05)
    status, _, err = run(*options, "relu")
    assert status == 3
    assert "correlation of all samples tends to 1" in err


def test_bad_input(run):
    status, _, err = run("width", "--distance", "0")
    assert status == 2
    assert "distance" in err


def test_unstable_fixed_point(run):
    status, _, err = run("width", "--activation", "silu", "--batch", "40")
    assert status == 3
    assert "unstable" in err
