"""Forecasts of the duration of commands."""

import math
from types import SimpleNamespace

import pytest

import bnmc
from bnmc.cli import forecast as forecasts
from bnmc.errors import ArgumentError
from bnmc.gradients import backpropagation
from bnmc.simulation import run
from bnmc.simulation.runs import seconds_of


def test_the_forecast_is_near_the_waiting_times():
    """Within a factor of 2, which 60 waiting times resolve to a few per cent."""
    chain = bnmc.Chain(60, 6, "relu")
    bound = bnmc.mixing.tv_bound(chain, 5, chains=60, rng=0)
    waited = float((bound.meeting_times - bound.lag).mean())
    assert 0.5 < forecasts.forecast(chain).wait / waited < 2.0


def test_the_wait_is_the_time_until_the_fluctuations_hide_the_distance():
    chain = bnmc.Chain(60, 6, "relu")
    expected = forecasts.forecast(chain)
    layers = -math.log(math.sqrt(60 * 6)) / math.log(expected.rate)
    assert expected.wait == pytest.approx(1.0 + layers, rel=1e-12)
    seconds = seconds_of("conditional", chain.layers[1], 6, "float64")
    assert expected.seconds == pytest.approx(seconds)


@pytest.mark.parametrize("rate", [1.0, 1.5])
def test_chains_that_do_not_approach_have_an_infinite_wait(monkeypatch, rate):
    at = SimpleNamespace(fixed_point=lambda: SimpleNamespace(rate=rate))
    monkeypatch.setattr("bnmc.mean_field.field.MeanField", lambda chain: at)
    assert forecasts.forecast(bnmc.Chain(60, 6)).wait == math.inf


def test_the_forecast_counts_layers():
    expected = forecasts.Forecast(rate=0.5, wait=20.0, seconds=1e-3)
    alone = expected.certificate(1000, lag=10)
    assert expected.certificate(1000, lag=20) > alone
    assert expected.certificate(2000, lag=10) > 1.7 * alone
    assert expected.rates() > expected.certificate(500)
    # Certificates of two starts, each with 922 pairs, and draws.
    assert expected.check(1000) - expected.check(500) == pytest.approx(2 * 500 * 2 * 20.0 * 1e-3)
    assert expected.check(0) == 2 * expected.certificate(923)
    # Without eigenvalues, the rate is 0.
    assert 0.0 < expected._replace(rate=0.0, wait=1.0).rates() < expected.rates()
    # Chains that cannot meet end after the pilot run.
    assert UNSTABLE.certificate(10**6) == UNSTABLE.certificate(10)


def test_a_chain_without_a_fixed_point_has_no_forecast():
    expected = forecasts.forecast(bnmc.Chain(50, 4, norm="none"))
    assert expected.certificate(10**6) == 0.0
    assert math.isnan(expected.rate)


@pytest.mark.parametrize(
    ("module", "function"), [(run, bnmc.simulate), (backpropagation, bnmc.backpropagate)]
)
def test_forecasts_of_runs_count_chains_layers_and_threads(monkeypatch, module, function):
    seconds = []
    monkeypatch.setattr(module, "with_forecast", lambda label, time: seconds.append(time) or label)
    for depth, chains, threads in ((4, 3, 1), (8, 3, 1), (4, 9, 1), (4, 3, 2)):
        function(bnmc.Chain(20, 4, "relu"), depth, chains=chains, threads=threads, rng=0)
    assert 0.0 < seconds[0] < 0.1
    assert seconds[1:] == pytest.approx([2.0 * seconds[0], 3.0 * seconds[0], seconds[0] / 2.0])


STABLE = forecasts.Forecast(rate=0.9, wait=44.0, seconds=1e-3)
UNSTABLE = forecasts.Forecast(rate=1.1, wait=math.inf, seconds=1e-3)


def announced(seconds, forecast=STABLE, progress=True, hours=1.0, threads=2):
    with forecasts.announced("certify", forecast, seconds, hours, threads, progress) as workers:
        return workers


def test_hours_are_refused_unless_allowed():
    for hours in (0.0, math.nan):
        with pytest.raises(ArgumentError, match="hours"):
            announced(1.0, hours=hours)
    announced(7200.0, hours=3.0)
    announced(7200.0, hours=1.1)  # by two threads
    with pytest.raises(ArgumentError, match=r"hours: got 1.1, allowed: at least 2"):
        announced(7200.0, hours=1.1, threads=1)


def test_long_commands_are_announced_unless_progress_is_off(capsys):
    assert announced(300.0)["progress"] is True
    assert capsys.readouterr().err == (
        "bnmc: certify takes about 2.5 min: by the mean field, chains meet after about 44 layers "
        "(rate 0.9 per layer)\n"
    )
    announced(300.0, UNSTABLE)
    assert "the fixed point is unstable" in capsys.readouterr().err
    announced(5.0)
    assert announced(500.0, progress=False)["progress"] is False
    assert capsys.readouterr().err == ""


def test_a_number_of_threads_makes_an_executor():
    with forecasts.announced("certify", STABLE, 0.0, 1.0, 3, False) as workers:
        assert len(set(workers["executor"].map(lambda _: 1, range(9)))) == 1
    assert announced(0.0, threads=None)["executor"] is None
