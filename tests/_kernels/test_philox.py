"""Philox4x32-10: published answers, the oracle, and the addresses that the kernels use."""

import numpy as np
import pytest
from numba import njit
from oracle import binomial_range, normals, philox, polar, weights

from bnmc._kernels.cpu import memory, numbers
from bnmc._kernels.scalar import codes
from bnmc._kernels.scalar.philox import element_of_attempt, key_of_attempt, philox4x32

# Random123 (D. E. Shaw Research), tests/kat_vectors, lines "philox4x32 10":
# counter, key, answer.
KNOWN_ANSWERS = [
    "00000000 00000000 00000000 00000000 00000000 00000000 6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    "ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff 408f276d 41c83b0e a20bc7c6 6d5451fd",
    "243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0 d16cfe09 94fdcceb 5001e420 24126ea1",
]

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])
DRAW = codes.Draw(
    12345, np.uint32(codes.STREAM_WEIGHTS | np.uint32(987)), np.uint32(7), np.uint32(9)
)


@njit
def compiled(counters, out):
    for i in range(counters.shape[0]):
        c = counters[i]
        out[i] = philox4x32(c[0], c[1], c[2], c[3], c[4], c[5])


def compiled_words(counters):
    """Four words for each row of six: counter, key."""
    out = np.zeros((len(counters), 4), np.uint32)
    compiled(counters.astype(np.uint32), out)
    return out


def filled(fill, dtype, elements, rows, draw, first_element=0, first_row=0):
    """What a kernel writes for all elements and rows, as (elements, rows)."""
    out = memory.aligned_zeros((elements * numbers.STRIDE,), dtype)
    fill(out, 0, first_element, elements, first_row, rows, draw)
    return out.reshape(elements, numbers.STRIDE)[:, :rows]


def test_streams_leave_the_bits_of_a_chain_free_and_differ_also_in_their_second_words():
    names = ("ROWS", "WEIGHTS", "FACTOR", "CHI", "START", "RESIDUAL", "COIN")
    firsts = [int(getattr(codes, f"STREAM_{name}")) for name in names]
    streams = [*firsts, *(first + int(codes.SECOND_WORD) for first in firsts)]
    assert len(set(streams)) == 14
    assert all(stream % codes.MOST_CHAINS == 0 and stream < 2**32 for stream in streams)


@pytest.mark.parametrize("line", KNOWN_ANSWERS)
def test_known_answers(line):
    words = [int(word, 16) for word in line.split()]
    expected = words[6:]
    assert list(philox4x32(*words[:6])) == expected
    assert list(compiled_words(np.array([words[:6]]))[0]) == expected
    assert [int(word) for word in philox(words[:4], words[4:6])] == expected


def test_python_and_machine_code_and_the_oracle_agree_on_random_counters():
    counters = np.random.default_rng(1).integers(0, 2**32, (2000, 6), dtype=np.uint32)
    machine = compiled_words(counters)
    assert [tuple(row) for row in machine] == [philox4x32(*row) for row in counters]
    for counter, answer in zip(counters[:200], machine, strict=False):
        assert [int(word) for word in philox(counter[:4], counter[4:])] == answer.tolist()


@pytest.mark.parametrize("position", range(6))
def test_every_bit_of_counter_and_key_matters(position):
    counters = np.zeros((33, 6), np.uint32)
    counters[:32, position] = np.uint32(1) << np.arange(32, dtype=np.uint32)
    words = compiled_words(counters)
    assert len({tuple(row) for row in words}) == 33
    # Of an ideal generator each bit of the answer flips with probability 1/2.
    flipped = np.bitwise_count(words[:32] ^ words[32]).sum(axis=1)
    low, high = binomial_range(128, 0.5, comparisons=32)
    assert flipped.min() >= low
    assert flipped.max() <= high


@DTYPES
def test_normals_are_at_their_addresses(dtype):
    """Random elements, rows, layers, chains, streams and keys."""
    generator = np.random.default_rng(2)
    for _ in range(30):
        element = int(generator.integers(0, 2**31))
        group = int(generator.integers(0, 2**24))
        draw = codes.Draw(
            int(generator.integers(0, 2**32)),
            np.uint32(generator.integers(0, 8) * 2**29 + generator.integers(0, 2**28)),
            *(np.uint32(word) for word in generator.integers(0, 2**32, 2)),
        )
        first_row = group * numbers.GROUP
        rows = np.arange(first_row, first_row + 128)
        written = filled(numbers.fill_normals, dtype, 3, 128, draw, element, first_row)
        radius, _ = polar(element + np.arange(3), rows, draw, dtype)
        exact = normals(element + np.arange(3), rows, draw, dtype)
        error = np.abs(written - exact) / (np.finfo(dtype).eps * radius)
        assert error.max() < 3.0


@DTYPES
@pytest.mark.parametrize("law", [codes.UNIFORM, codes.RADEMACHER])
def test_other_weights_are_at_their_addresses(dtype, law):
    fill = numbers.fill_uniforms if law == codes.UNIFORM else numbers.fill_signs
    written = filled(fill, dtype, 5, 192, DRAW, first_element=40, first_row=640)
    exact = weights(law, 40 + np.arange(5), 640 + np.arange(192), DRAW, dtype)
    assert np.abs(written - exact).max() <= 2 * np.finfo(dtype).eps


@DTYPES
@pytest.mark.parametrize("fill", [numbers.fill_normals, numbers.fill_uniforms, numbers.fill_signs])
def test_python_bodies_write_the_same(fill, dtype):
    """Python rounds every product; machine code may round a product and a sum once."""
    machine = filled(fill, dtype, 3, 128, DRAW, first_element=17, first_row=256)
    python = filled(fill.py_func, dtype, 3, 128, DRAW, first_element=17, first_row=256)
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(machine, python, rtol=0, atol=6 * eps * np.abs(machine).max())
    if fill is numbers.fill_signs:
        np.testing.assert_array_equal(machine, python)


@pytest.mark.parametrize(
    ("first_element", "first_row", "elements", "rows"), [(0, 0, 7, 256), (3, 64, 2, 64)]
)
@DTYPES
def test_a_fill_writes_its_place_alone_and_the_same_in_any_parts(
    dtype, first_element, first_row, elements, rows
):
    whole = filled(numbers.fill_normals, dtype, elements, rows, DRAW, first_element, first_row)
    for k in range(elements):
        for start in range(0, rows, numbers.GROUP):
            out = memory.aligned_zeros((3 * numbers.STRIDE,), dtype)
            numbers.fill_normals(
                out, 1, first_element + k, 1, first_row + start, numbers.GROUP, DRAW
            )
            column = out[numbers.STRIDE : numbers.STRIDE + numbers.GROUP]
            np.testing.assert_array_equal(column, whole[k, start : start + numbers.GROUP])
            column[:] = 0.0
            assert not out.any()


def test_float32_and_float64_normals_of_one_address_are_near():
    """They share their first words, so they differ by what a word of 32 bits cannot say.

    That is u (1 +- e) with e <= 1 / (2 word + 1) + 2^-24 in the uniform u, so e / radius in the
    radius: a few float32 ulp but for the far tail (|z| > 4: word < 2^21) and radii below 0.1,
    where the float32 u near 1 is what is rounded.
    """
    rows, elements = np.arange(256), np.arange(4000)
    single = filled(numbers.fill_normals, np.float32, 4000, 256, DRAW).astype(np.float64)
    double = filled(numbers.fill_normals, np.float64, 4000, 256, DRAW)
    radius, _ = polar(elements, rows, DRAW, np.float32)
    radius = radius.astype(np.float64)
    word = 2.0**32 * np.exp(-(radius**2) / 2)
    eps = np.finfo(np.float32).eps
    difference = np.abs(single - double)
    assert np.all(difference <= (1 / (word - 1).clip(1) + eps) / radius + 4 * eps * radius)
    usual = (radius > 0.1) & (radius < 4)
    assert usual.mean() > 0.99
    assert np.all(difference[usual] <= 16 * eps)


@pytest.mark.parametrize("columns", [1, 2, 3, 10, 1000, 2**20 + 7])
def test_attempts_share_no_numbers(columns):
    """Elements stay in their word; attempts beyond it have other keys, and so other numbers."""
    per_key = 2**32 // columns
    attempts = [0, 1, per_key - 1, per_key, per_key + 1, 5 * per_key - 1, 7 * per_key]
    addresses = set()
    for attempt in attempts:
        element = element_of_attempt(attempt, columns)
        key = int(key_of_attempt(np.uint32(2**32 - 3), attempt, columns))
        assert 0 <= element <= 2**32 - columns
        assert element % columns == 0
        assert key == (2**32 - 3 + attempt // per_key) % 2**32
        addresses.add((element, key))
    assert len(addresses) == len(attempts)
    # The first attempts have the key of the run.
    assert element_of_attempt(1, columns) == columns
