"""The report of a check as a table and as a dictionary."""

import json

import numpy as np
import pytest
from numpy_chains import network, settled

import bnmc
from bnmc.invariant.claim_check import check

RELU = bnmc.Chain(10, 3, "relu")


@pytest.fixture(scope="module")
def samples():
    rng = np.random.default_rng(23)
    return settled(RELU, network("relu", rng), 200, rng)


def test_a_report_is_a_table(samples):
    report = check(RELU, samples=2 * samples, rng=24)
    lines = str(report).splitlines()
    assert lines[0] == f"The stationary law of {RELU!r}: 200 samples, given"
    assert lines[1].split() == [
        "claim", "statistic", "compared", "with", "stderr", "p", "or", "interval", "adjusted",
        "verdict",
    ]  # fmt: skip
    assert len(lines) == len(report.rows) + 3
    assert not report.ok
    assert report.failures
    assert all(row.verdict == "fails" for row in report.failures)
    for row, line in zip(report.rows, lines[2:-1], strict=True):
        assert line.startswith(row.claim)
        assert line.endswith(row.verdict)
        assert ("[" in line) == (row.interval is not None)
        assert ("worst of" in line) == (row.count > 1)
    held = sum(row.verdict == "holds" for row in report.rows)
    count = held + len(report.failures)
    assert lines[-1] == (
        f"{held} of {count} claims that were tested hold, at alpha = 0.001 (Holm); "
        f"{len(report.rows) - count} were not tested"
    )


def test_a_report_can_be_stored(samples):
    report = check(RELU, samples=samples, rng=25)
    stored = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert stored == report.to_dict()
    assert stored["chain"] == repr(RELU)
    assert stored["ok"] is True
    assert [row["claim"] for row in stored["rows"]] == [row.claim for row in report.rows]
    assert set(stored["rows"][0]) == {
        "claim", "statistic", "expected", "stderr", "interval", "p_value", "adjusted", "verdict",
        "count",
    }  # fmt: skip
