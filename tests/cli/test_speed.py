"""``bnmc bench``: what it measures and prints."""

import time
from types import SimpleNamespace

import numpy as np
import pytest

from bnmc.chain import Chain
from bnmc.chain.norms import as_norm
from bnmc.cli import speed
from bnmc.testing import machine_limits


def test_command(printed, document_of):
    line = "bench --width 40 --batch 4 --seconds 0.01 --threads 1"
    first, *others = document_of(line)["rows"]
    assert first["speed"] == 1.0
    assert all(row["layers_per_second"] > 0 for row in (first, *others))
    assert "layers per second" in printed(line)


def test_numpy_normalises_as_the_chain_does():
    seen = []

    def activation(x):
        seen.append(x)
        return np.maximum(x, 0.0)

    chain = SimpleNamespace(
        width=50, batch=4, normalization=as_norm("batch"), activation=activation
    )
    speed._run_numpy(chain, 3)
    assert len(seen) == 3
    for x in seen:
        np.testing.assert_allclose(x.mean(axis=1), 0.0, atol=1e-12)
        np.testing.assert_allclose(np.square(x).mean(axis=1), 1.0)


def test_weights_of_numpy_have_variance_1_by_width(monkeypatch):
    ones = SimpleNamespace(standard_normal=np.ones)
    monkeypatch.setattr(np.random, "default_rng", lambda seed: ones)
    seen = []
    chain = SimpleNamespace(
        width=50, batch=4, normalization=SimpleNamespace(centred=False),
        activation=lambda x: seen.append(x) or x,
    )  # fmt: skip
    monkeypatch.setattr(np, "sqrt", lambda squares: seen.append(squares) or 1.0)
    speed._run_numpy(chain, 1)
    # Of weights and inputs 1, each entry is width / sqrt(width).
    np.testing.assert_allclose(seen[0], 50.0)


@pytest.mark.parametrize(("norm", "normals"), [("batch-uncentred", 90), ("batch", 60)])
def test_progress_and_normals(monkeypatch, norm, normals):
    """Weights are 30 × 30, rows of samples 30 × 3, of centred ones 30 × 2."""
    told, ran = [], []

    def simulate(chain, layers, *, chains, threads, dtype, **_):
        ran.append((chain, chains, threads, dtype))
        time.sleep(1e-4 * layers)

    monkeypatch.setattr(speed, "simulate", simulate)
    chain = Chain(30, 3, "linear", norm=norm)
    rows = speed.layer_speeds(
        chain, seconds=0.002, threads=2, progress=lambda *done: told.append(done)
    )
    assert told == [(k, 16) for k in range(1, 17)]
    assert set(ran) == {
        (chain, 1, 1, "float64"), (chain, 8, 2, "float64"),
        (chain, 8, 2, "float32"),
    }  # fmt: skip
    ratios = [row["normals_per_second"] / row["layers_per_second"] for row in rows]
    assert ratios == pytest.approx([900] + [normals] * 3)


def test_speeds_are_networks_times_layers_by_seconds(monkeypatch):
    """By a clock that runs only in programs: 2 s, 1 s or .5 s a layer."""
    now = [1000.0]

    def pass_time(seconds):
        now[0] += seconds

    def simulate(chain, layers, *, dtype, **_):
        pass_time(layers * (1.0 if dtype == "float64" else 0.5))

    monkeypatch.setattr(machine_limits, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(speed, "_run_numpy", lambda chain, layers: pass_time(2.0 * layers))
    monkeypatch.setattr(speed, "simulate", simulate)
    rows = speed.layer_speeds(Chain(30, 3), seconds=8.0, threads=2, progress=False)
    assert [row["layers_per_second"] for row in rows] == [0.5, 1.0, 8.0, 16.0]
    assert [row["speed"] for row in rows] == [1.0, 2.0, 16.0, 32.0]
