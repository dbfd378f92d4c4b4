"""``bnmc regularity``: the constant."""

import pytest


def test_regularity(run, document_of):
    found = document_of("regularity", "--width", "8", "--rtol", "0.02", "--seed", "0")
    # The stationary value of square linear networks of width 8: .9119.
    assert found["value"] == pytest.approx(0.9119, abs=6.0 * found["stderr"])
    assert found["stderr"] < 0.02
    status, out, _ = run("regularity", "--width", "8", "--rtol", "0.02", "--seed", "0")
    assert status == 0
    assert "regularity constant 0.9" in out
