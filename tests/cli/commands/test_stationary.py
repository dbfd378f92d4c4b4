"""``bnmc check``, ``rates`` and ``regularity``: verdicts, estimates and their statuses."""

import json

import numpy as np
import pytest

import bnmc
from bnmc.cli import statuses
from bnmc.cli.inputs import read_states


def test_check(run, document_of, refusal, tmp_path):
    line = "check --width 30 --batch 3 --seed 0 --samples"
    chain = bnmc.Chain(30, 3, "relu")
    good = bnmc.invariant.sample(chain, 300, atol=0.05, rng=0).preactivations()
    np.save("good.npy", good)
    assert document_of(f"{line} good.npy")["ok"] is True
    np.save("bad.npy", np.random.default_rng(0).standard_normal((300, 30, 3)))
    status, out, err = run(f"{line} bad.npy")
    assert (status, err) == (statuses.FAILED, "")
    assert "fails" in out
    (tmp_path / "torn.npy").write_bytes((tmp_path / "good.npy").read_bytes()[:300])
    err = refusal(f"{line} torn.npy")
    assert "samples: got 'torn.npy', allowed: an undamaged .npy file" in err
    np.testing.assert_array_equal(read_states("good.npy"), good)


@pytest.mark.slow
def test_rates_that_nothing_tells_end_with_a_status(run):
    collapsing = "--width 32 --batch 20 --activation linear --seed 0"
    status, out, err = run(f"rates {collapsing} --threads 1 --json")
    assert (status, err) == (statuses.NO_ESTIMATE, "")
    assert all("rate" not in row for row in json.loads(out)["rows"][1:])
