"""Blocks of layers in one process: the memory of their frames."""

from unittest import mock

import pytest

import bnmc
from bnmc.simulation import segment
from bnmc.simulation.runs import Run


@pytest.mark.parametrize("chains", [1, 6])
def test_a_block_has_as_many_layers_as_its_bytes_allow(chains):
    """All chains count: one layer more would be too many bytes."""
    chain, inputs, made = bnmc.Chain(12, 4, "relu"), 2, []
    original = Run.frames

    def frames(self, layers):
        found = original(self, layers)
        made.append(found.gram.nbytes)
        return found

    with (
        mock.patch.object(segment, "FRAME_BYTES", 1 << 15),
        mock.patch.object(segment, "TASK_SECONDS", 1e9),
        mock.patch.object(Run, "frames", frames),
    ):
        run = bnmc.simulate(chain, 500, chains=chains, inputs=inputs, rng=0, threads=2)
    assert run.complete
    layer = 8 * chains * (inputs * 4) ** 2
    assert (1 << 15) - layer < max(made) <= 1 << 15
