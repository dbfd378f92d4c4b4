"""``bnmc rates``: its status without an estimate."""

import json

import pytest

from bnmc.cli import statuses


@pytest.mark.slow
def test_rates_that_nothing_tells_end_with_a_status(run):
    collapsing = "--width 32 --batch 20 --activation linear --seed 0"
    status, out, err = run(f"rates {collapsing} --threads 1 --json")
    assert (status, err) == (statuses.NO_ESTIMATE, "")
    assert all("rate" not in row for row in json.loads(out)["rows"][1:])
