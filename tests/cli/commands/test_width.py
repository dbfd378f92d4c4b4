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


def test_bad_input(run):
    status, _, err = run("width", "--distance", "0")
    assert status == 2
    assert "distance" in err


def test_unstable_fixed_point(run):
    status, _, err = run("width", "--activation", "silu", "--batch", "40")
    assert status == 3
    assert "unstable" in err
