"""Forecasts of the duration of commands, and the lines while they run."""

import math
import time

import pytest

import bnmc
from bnmc.cli import waiting
from bnmc.errors import ArgumentError


def test_the_forecast_is_near_the_waiting_times():
    """Within a factor of 2, which 60 waiting times resolve to a few per cent."""
    chain = bnmc.Chain(60, 6, "relu")
    found = bnmc.mixing.tv_bound(chain, 5, replicates=60, rng=0)
    waited = float((found.meeting_times - found.lag).mean())
    assert 0.5 < waiting.forecast(chain).wait / waited < 2.0


def test_the_forecast_counts_layers():
    found = waiting.Forecast(rate=0.5, wait=20.0, seconds=1e-3)
    alone = found.certificate(1000, lag=10)
    assert found.certificate(1000, lag=20) > alone
    assert found.certificate(2000, lag=10) > 1.7 * alone
    assert found.rates() > found.certificate(500)
    # Chains that cannot meet end after the pilot run.
    unstable = waiting.Forecast(rate=1.1, wait=math.inf, seconds=1e-3)
    assert unstable.certificate(10**6) == unstable.certificate(10)


def test_a_chain_without_a_fixed_point_has_no_forecast():
    assert waiting.forecast(bnmc.Chain(50, 4, norm="none")) is None


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.2, "4 s"), (89.0, "89 s"), (600.0, "10 min"), (9000.0, "2.5 h")]
)
def test_durations_in_words(seconds, text):
    assert waiting.time_text(seconds) == text


def test_hours_are_refused_unless_allowed(run):
    status, out, err = run("certify", "--width", "100000", "--batch", "100", "--no-progress")
    assert (status, out) == (2, "")
    assert "hours: got 1.0, allowed: at least " in err
    assert err.count("\n") == 1
    for hours in (0.0, math.nan):
        with pytest.raises(ArgumentError, match="hours"):
            waiting.require_hours(1.0, hours)
    waiting.require_hours(7200.0, 3.0)


def test_the_duration_is_announced_and_lines_follow(monkeypatch, capsys):
    monkeypatch.setattr(waiting, "LINE_SECONDS", 0.02)
    found = waiting.Forecast(rate=0.9, wait=44.0, seconds=1e-3)
    with waiting.waiting("certify", found, 300.0, 1.0, 2, None) as report:
        report(3, 7)
        time.sleep(0.3)
    first, *lines = capsys.readouterr().err.splitlines()
    assert first == (
        "bnmc: certify takes about 2.5 min: by the mean field, chains meet after about 44 layers "
        "(rate 0.9 per layer)"
    )
    assert lines[-1] == "bnmc: certify: 0 s, 3 of 7 tasks of this part"


def test_short_commands_and_silent_ones_print_nothing(capsys):
    found = waiting.Forecast(rate=0.9, wait=44.0, seconds=1e-3)
    with waiting.waiting("certify", found, 5.0, 1.0, 2, None):
        pass
    with waiting.waiting("certify", found, 500.0, 1.0, 2, False) as report:
        assert report is False
    assert capsys.readouterr().err == ""
