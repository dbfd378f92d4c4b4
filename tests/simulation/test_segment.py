"""Blocks of layers in one process: the memory of their frames."""

from unittest import mock

import numpy as np
import pytest

import bnmc
from bnmc.simulation import segment


@pytest.mark.parametrize("chains", [1, 6])
def test_a_block_has_as_many_layers_as_its_bytes_allow(chains):
    """All chains count: one layer more would be too many bytes."""
    chain, inputs, made = bnmc.Chain(12, 4, "relu"), 2, []
    original = segment.Segment._frames

    def frames(self, layers):
        found = original(self, layers)
        made.append(found.gram.nbytes)
        return found

    with (
        mock.patch.object(segment, "FRAME_BYTES", 1 << 15),
        mock.patch.object(segment, "TASK_SECONDS", 1e9),
        mock.patch.object(segment.Segment, "_frames", frames),
    ):
        run = bnmc.simulate(chain, 500, chains=chains, inputs=inputs, rng=0, threads=2)
    assert run.complete
    layer = 8 * chains * (inputs * 4) ** 2
    assert (1 << 15) - layer < max(made) <= 1 << 15


def test_frames_of_numbers_are_divided_among_devices():
    """Each device records its own chains, whether these are one, several or all."""
    whole = mock.Mock(chains=3)
    whole.sampler = mock.Mock(columns=4, measures=("gap", "rank"))
    whole.job = mock.Mock(stays=False, inputs=2)
    frames = segment.Segment._frames(whole, 5)
    assert frames.values.shape == (3, 5, 2, 2)
    for first, last in ((0, 1), (1, 2), (1, 3), (0, 3)):
        frames.part(first, last).values[...] = 0.0
        frames.part(first, last).values[...] += 1.0 + first
        assert frames.part(first, last).values.shape == (last - first, 5, 2, 2)
        np.testing.assert_array_equal(frames.values[first:last], 1.0 + first)
