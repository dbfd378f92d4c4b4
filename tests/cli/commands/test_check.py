"""``bnmc check``: verdicts on draws and on states of another program."""

import numpy as np

import bnmc
from bnmc.cli import statuses
from bnmc.cli.inputs import read_states


def test_check(run, document_of, tmp_path):
    arguments = ("check", "--width", "30", "--batch", "3", "--seed", "0")
    rng = np.random.default_rng(0)
    chain = bnmc.Chain(30, 3, "relu")
    good = bnmc.invariant.sample(chain, 300, tolerance=0.05, rng=0).preactivations()
    np.save("good.npy", good)
    found = document_of(*arguments, "--samples", "good.npy")
    assert found["ok"] is True
    np.save("bad.npy", rng.standard_normal((300, 30, 3)))
    status, out, err = run(*arguments, "--samples", "bad.npy")
    assert (status, err) == (statuses.FAILED, "")
    assert "fails" in out
    (tmp_path / "torn.npy").write_bytes((tmp_path / "good.npy").read_bytes()[:300])
    status, _, err = run(*arguments, "--samples", "torn.npy")
    assert status == 2
    assert "samples: got 'torn.npy', allowed: an undamaged .npy file" in err
    assert run(*arguments, "--samples", "missing.npy")[0] == 2
    np.testing.assert_array_equal(read_states("good.npy"), good)
