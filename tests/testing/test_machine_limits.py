"""`roofline` by a clock that is known, and the cost of a layer."""

import sys
from types import SimpleNamespace

from bnmc._kernels.cpu import peaks
from bnmc.testing.machine_limits import layer_flops, layer_normals, roofline

measuring = sys.modules["bnmc.testing.machine_limits"]


def test_what_a_layer_costs():
    assert layer_normals(100, 7, "conditional") == 700
    assert layer_normals(100, 7, "weights") == 10_000
    assert layer_flops(100, 7, "conditional") == 2 * 100 * 49
    assert layer_flops(100, 7, "weights") == 2 * 100 * 100 * 7 + 100 * 49


def test_the_ratio_by_a_clock_that_is_known(monkeypatch):
    """A normal takes 3 ns and an operation a quarter: the layer below takes twice what it must."""
    clock, normal, operation = [0.0], 3e-9, 0.25e-9
    lanes, accumulators = 8, 5

    def fill(block, times, key):
        clock[0] += times * peaks.NORMALS * normal

    def fused(steps, factor, offset):
        clock[0] += steps * 2 * lanes * accumulators * operation

    def layers():
        clock[0] += 4 * 2 * (700 * normal + 9800 * operation)

    monkeypatch.setattr(measuring, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(measuring, "fill_blocks", fill)
    monkeypatch.setattr(measuring, "vector_registers", lambda: (64 * lanes, accumulators))
    monkeypatch.setattr(measuring, "fma_kernel", lambda dtype, bits, count: fused)
    limit = roofline(layers, width=100, batch=7, layers=4)
    # Differences of the clock, which is near 0.1, to its rounding.
    assert abs(limit.ratio - 0.5) < 1e-9
    assert abs(limit.ideal - (700 * normal + 9800 * operation)) < 1e-14
    assert abs(limit.seconds - 2 * limit.ideal) < 1e-14


def test_peaks_of_this_machine():
    """No machine makes a number of 64 bits in less than 0.01 ns, or takes a microsecond."""
    limit = roofline(lambda: None, width=1, batch=1, sampler="weights", rounds=3)
    assert 1e-11 < limit.ideal < 1e-6
