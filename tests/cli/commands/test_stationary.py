"""``bnmc check``, ``rates`` and ``regularity``: verdicts, estimates and their statuses."""

import json

import numpy as np
import pytest

import bnmc
from bnmc._support.progress import duration_text
from bnmc._support.workers import thread_count
from bnmc.cli import statuses
from bnmc.cli.commands import stationary
from bnmc.cli.forecast import Forecast
from bnmc.cli.inputs import read_states
from bnmc.errors import BnmcError
from bnmc.mixing import comparison


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


def test_a_decaying_mean_alone_is_no_rate(run, monkeypatch):
    # The mean of the ensemble decays, and all other methods lack a rate.
    def fail(*_, **__):
        raise BnmcError("no rate")

    line = "rates --width 300 --batch 4 --activation relu --seed 0 --threads 1"
    expected = comparison.compare(bnmc.Chain(300, 4, "relu"), rng=0)
    assert expected["relaxation"].rate < 1.0
    for name in ("contraction", "tv_bound", "autocorrelation", "spectral"):
        monkeypatch.setattr(comparison, name, fail)
    status, out, _ = run(line)
    assert status == statuses.NO_ESTIMATE
    cells = [row.split()[:2] for row in out.splitlines()]
    for name in ("contraction", "tv_bound", "autocorrelation", "spectral", "relaxation"):
        assert [name, "none"] in cells
    assert "the ensemble mean decays by the factor" in " ".join(out.split())
    status, out, err = run(f"{line} --json")
    assert (status, err) == (statuses.NO_ESTIMATE, "")
    assert all("rate" not in row for row in json.loads(out)["rows"][1:])


@pytest.mark.slow
def test_rates_that_nothing_tells_end_with_a_status(run):
    collapsing = "--width 32 --batch 20 --activation linear --seed 0"
    status, out, err = run(f"rates {collapsing} --threads 1 --json")
    assert (status, err) == (statuses.NO_ESTIMATE, "")
    assert all("rate" not in row for row in json.loads(out)["rows"][1:])


@pytest.fixture
def wanted(monkeypatch):
    """Replace `check` and `constant`, which take seconds; return the arguments of their calls."""
    calls = []

    def instead(result):
        return lambda chain, **options: calls.append(options) or result

    report = bnmc.invariant.CheckReport(bnmc.Chain(30, 3, "relu"), (), 1e-3, 300, "given", 0)
    monkeypatch.setattr(bnmc.invariant, "check", instead(report))
    constant = bnmc.Estimate(0.5, 0.1, (0.3, 0.7), 4, "none")
    monkeypatch.setattr(bnmc.regularity, "constant", instead(constant))
    return calls


def test_a_long_check_is_announced(run, monkeypatch, wanted):
    expected = Forecast(rate=0.9, wait=44.0, seconds=1e-3)
    monkeypatch.setattr(stationary, "forecast", lambda chain: expected)
    line = "check --width 30 --batch 3 --seed 0"
    seconds = expected.check(1000) / thread_count(None)
    assert seconds > 10.0
    assert run(line)[2] == (
        f"bnmc: check takes about {duration_text(seconds)}: by the mean field, chains meet after "
        "about 44 layers (rate 0.9 per layer)\n"
    )
    np.save("x.npy", np.zeros((300, 30, 3)))
    for silent in ("--no-progress", "--samples x.npy"):
        assert run(f"{line} {silent}")[2] == ""


def test_a_long_estimate_of_the_regularity_is_announced(run, wanted):
    line = "regularity --width 600 --threads 2 --seed 0"
    # 2 · ceil(24 √600) layers of 64 chains; a layer takes the square of 83 directions, of 600 rows.
    seconds = 1176 * 64 * (1e-6 + 2.5e-10 * 600 * 83**2) / 2
    assert run(line)[2] == (
        f"bnmc: regularity takes about {duration_text(seconds)}: 1176 layers of 64 chains, or "
        "more\n"
    )
    for silent in ("--no-progress", "--width 8"):
        assert run(f"{line} {silent}")[2] == ""


@pytest.mark.parametrize("command", ["check", "regularity"])
def test_long_commands_report_progress_by_default(run, wanted, command):
    for option in ("", "--no-progress"):
        run(f"{command} --width 30 --batch 3 {option}")
    assert [options["progress"] for options in wanted] == [True, False]
