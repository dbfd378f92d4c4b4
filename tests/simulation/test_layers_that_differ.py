"""Layers that differ in width, activation and norm, one kernel call each, against plain NumPy.

Drawn weights are made again from their counters, so layers by weights agree to rounding.  Rows that
are drawn given the Gram matrix have the law of networks with real weights.
"""

import numpy as np
import pytest
from oracle import FORMULAS, gram, ks_distance, normals, two_sample_threshold

import bnmc
from bnmc._kernels.cpu import layers, memory, rows
from bnmc._kernels.cpu.sources import Drawn, Multiplied
from bnmc._kernels.scalar import codes
from bnmc.chain.compiled import sigma_of, spec_of

KEY = np.uint32(3), np.uint32(5)
START = np.random.default_rng(0).standard_normal((20, 5))
#: An activation without norm before a batch norm, a hidden common part before a visible one, a
#: scale that is hidden before one that is not, and widths that grow and fall.
CHAINS = [
    bnmc.Chain(24, 5, "gelu", norm="none", gain=1.3, bias_variance=0.3),
    bnmc.Chain(40, 5, "tanh"),
    bnmc.Chain(12, 5, "relu", norm="layer", eps=0.01),
    bnmc.Chain(30, 5, "tanh", norm="batch-uncentred", eps=0.1, bias_variance=0.2),
]
NORMS = {
    "none": lambda h, eps: h,
    "batch": lambda h, eps: (h - h.mean(-1, keepdims=True)) / h.std(-1, keepdims=True),
    "batch-uncentred": lambda h, eps: h / np.sqrt((h**2).mean(-1, keepdims=True) + eps),
    "layer": lambda h, eps: (
        (h - h.mean(-2, keepdims=True)) / np.sqrt(h.var(-2, keepdims=True) + eps)
    ),
}


def grams_by_kernels(networks, by_weights):
    """The Gram matrices of all layers, (layers, networks, 5, 5)."""
    kept = (8, memory.stride(40)) if by_weights else (0, 0)
    state = layers.State(
        np.tile(gram(START), (networks, 1, 1)), np.zeros((networks, 0, 0)),
        np.zeros((networks, 2, *kept)), np.zeros((networks, 0), np.int64),
    )  # fmt: skip
    if by_weights:
        state.activations[:, 0, :5, :20] = START.T
    work, record, width = memory.work(5, 1, np.float64), [], 20
    for number, chain in enumerate(CHAINS, 1):
        spec = spec_of(chain)._replace(fan_in=width)
        source = Drawn(codes.STREAM_ROWS)
        if by_weights:
            spec = spec._replace(hides_common=False)
            source = Multiplied(codes.STREAM_WEIGHTS, np.zeros((0, 0)))
        record.append(np.zeros((networks, 1, 5, 5)))
        course = layers.Course(
            0, number, *KEY, np.zeros(1, np.int64), record[-1], np.zeros((networks, 1, 0), int),
            np.zeros((networks, 3), np.int64), 0,
        )  # fmt: skip
        sigma = rows.activation(sigma_of(chain.activation), "float64")
        sums = layers.sums_of(spec, np.float64)
        layers.layers(None, source, sigma, layers.records(spec), state, course, work, sums)
        assert not course.status.any()
        width = chain.width
    return np.stack(record)[:, :, 0]


def grams_by_numpy(networks, normals_of):
    """The same; `normals_of` returns those of a layer, for weights and one bias of each row."""
    a, record = np.tile(START, (networks, 1, 1)), []
    for number, chain in enumerate(CHAINS, 1):
        fan_in = a.shape[-2]
        z = normals_of(number, chain.width, fan_in + 1)
        h = chain.gain * z[..., :fan_in] @ a / np.sqrt(fan_in)
        h += np.sqrt(chain.bias_variance) * z[..., fan_in:]
        a = FORMULAS[chain.activation.name](NORMS[chain.norm](h, chain.eps))
        record.append(gram(a))
    return np.stack(record)


def test_layers_by_weights_are_those_of_numpy():
    def normals_of(number, width, length):
        draws = [codes.Draw(number, codes.STREAM_WEIGHTS | np.uint32(k), *KEY) for k in range(2)]
        every = np.arange(length), np.arange(width)
        return np.stack([normals(*every, draw, np.float64).T for draw in draws]).astype(float)

    expected = grams_by_numpy(2, normals_of)
    np.testing.assert_allclose(grams_by_kernels(2, by_weights=True), expected, atol=1e-12)


@pytest.mark.parametrize("by_weights", [False, True])
def test_layers_have_the_law_of_networks(by_weights):
    networks, generator = 4000, np.random.default_rng(1)
    pair = [
        grams_by_kernels(networks, by_weights),
        grams_by_numpy(
            networks, lambda number, *shape: generator.standard_normal((networks, *shape))
        ),
    ]
    entries = [(0, 0), (0, 1), (3, 4)]
    limit = two_sample_threshold(networks, len(CHAINS) * len(entries))
    for mine, other in zip(*pair, strict=True):
        for entry in entries:
            assert ks_distance(mine[:, *entry], other[:, *entry]) < limit


def test_one_call_takes_layers_whose_numbers_differ():
    """Gain, skip and eps of each layer are those of its own spec; the last one is repeated."""
    specs = [
        spec_of(bnmc.Chain(30, 5, "tanh", skip=skip, gain=gain, eps=eps))
        for skip, gain, eps in ((0.5, 1.0, 0.1), (0.0, 0.7, 0.2), (0.9, 1.3, 0.0))
    ]
    records = []
    for calls in ([(specs, 4)], [([spec], 1) for spec in (*specs, specs[-1])]):
        state = layers.State(
            gram(START)[None], np.zeros((1, 5, memory.stride(30))), np.zeros((1, 2, 0, 0)),
            np.zeros((1, 0), np.int64),
        )  # fmt: skip
        number = 1
        for some, count in calls:
            record, slots = np.zeros((1, count, 5, 5)), np.arange(count)
            layers.layers(
                None, Drawn(codes.STREAM_ROWS),
                rows.activation(sigma_of(bnmc.Activation.named("tanh")), "float64"),
                layers.records(*some), state,
                layers.Course(
                    0, number, *KEY, slots, record, np.zeros((1, count, 0), int),
                    np.zeros((1, 3), np.int64), 0,
                ),
                memory.work(5, 1, np.float64), layers.sums_of(specs[0], np.float64),
            )  # fmt: skip
            number += count
            records.append(record[0])
    np.testing.assert_array_equal(records[0], np.concatenate(records[1:]))
