"""How many layers a backward pass keeps at a time."""

import math

import pytest

from bnmc import Chain
from bnmc.gradients import parts
from bnmc.gradients.parts import NORMS, STRETCH_BYTES, Task
from bnmc.simulation.runs import Recorded, Run


def task_of(chain, depth, chains=1):
    run = Run(
        chain.repeat(1), "conditional", chains, None, "float64", recorded=Recorded(1, 1, depth)
    )
    return Task(run, None, ())


@pytest.mark.parametrize(("skip", "depth"), [(0.0, 5000), (0.5, 150)])
def test_a_stretch_fills_its_memory(skip, depth):
    """Three matrices of each layer and chain, and representations if there are skip connections."""
    width, columns, chains = 1000, 32, 4
    each = 3 * 8 * columns**2 * chains
    if skip:
        each += 8 * columns * 1024 * chains  # rows of whole blocks of 512
    layers = task_of(Chain(width, columns, skip=skip), depth).layers_of_stretch(chains)
    assert layers == STRETCH_BYTES // each
    assert math.isqrt(depth) < layers < depth


def test_a_stretch_is_at_least_a_root_of_the_depth_and_at_most_the_depth():
    chain = Chain(4000, 128, skip=1.0)
    assert task_of(chain, 400).layers_of_stretch(50) == 20
    assert task_of(chain, 1).layers_of_stretch(50) == 1
    assert task_of(Chain(10, 3), 7).layers_of_stretch(1) == 7


class Noted:
    """A pass that takes no layers; `seen` has the first and last chain of each."""

    seen = ()

    def __init__(self, task, run, start, stop):
        Noted.seen += ((start, run.first, run.first + run.chains),)
        self.part = parts.empty_part(run, ())

    def result(self):
        return self.part


class Start:
    """A start whose parts are their ranges."""

    @staticmethod
    def part(first, last):
        return first, last


@pytest.mark.parametrize(("skip", "size"), [(0.0, 10), (0.5, 3), (1.0, 3)])
def test_chains_with_a_skip_connection_share_the_memory_of_a_stretch(skip, size, monkeypatch):
    """Their representations of all layers are kept, so there is room for three chains at a time."""
    chain, depth, first = Chain(1000, 4, skip=skip), 3, 5
    rows = 8 * 4 * 1024  # in whole blocks of 512
    monkeypatch.setattr(parts, "RowPass", Noted)
    monkeypatch.setattr(Noted, "seen", ())
    monkeypatch.setattr(parts, "STRETCH_BYTES", 3 * depth * rows)
    part = task_of(chain, depth, chains=20)(Start, first, first + 10)
    expected = [(begin, min(begin + size, 10)) for begin in range(0, 10, size)]
    assert Noted.seen == tuple((ends, first + ends[0], first + ends[1]) for ends in expected)
    assert part[NORMS].shape == (10, depth)
