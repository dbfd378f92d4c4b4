"""The random words and normals of runs, in the order of their use, through PractRand.

A case is one GiB of a stream of 32-bit words.  No line that the program prints may say FAIL.

The words are those of the float64 rows of a conditional run: layer by layer, and group of rows by
group.  The normals are those that the kernels make of these words; the distribution function of
the normal law maps each to a word.
"""

import shlex
import shutil
import subprocess
import threading

import numpy as np
import pytest
from numba import njit
from scipy.special import ndtr

import bnmc.kernels as kernels
from bnmc._kernels.scalar.codes import SECOND_WORD

#: Shape of the layers, and rows that the kernels draw of one column at once.
WIDTH, BATCH, GROUP = 1024, 64, 64
#: Bytes of one case.
CASE = 1 << 30


@pytest.mark.parametrize("stream", ["words", "normals"])
def test_a_stream_is_random(stream, request, option):
    command = shlex.split(request.config.getoption("--stream-program", "RNG_test"))
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]}: no such program")
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    printed = []
    reader = threading.Thread(target=lambda: printed.extend(child.stdout))
    reader.start()
    source, sent, layer = {"words": words, "normals": normals}[stream], 0, 0
    try:
        while sent < CASE * option("stream-gib"):
            layer += 1
            content = source(option("case-seed"), layer)
            child.stdin.write(content.data)
            sent += content.nbytes
    finally:
        child.kill()
        child.wait()
        reader.join()
    assert printed
    text = b"".join(printed).decode(errors="replace")
    print(text)
    assert "FAIL" not in text


# --- the streams --------------------------------------------------------------------------------


def words(seed, layer):
    """Return the words of one layer."""
    return _words(np.uint64(seed), layer, kernels.Stream.ROWS)


@njit
def _words(key, layer, stream):
    out = np.empty(2 * WIDTH * BATCH, np.uint32)
    k0, k1 = np.uint32(key & np.uint64(0xFFFFFFFF)), np.uint32(key >> np.uint64(32))
    at = 0
    for group in range(WIDTH // GROUP):
        for element in range(BATCH):
            for row in range(group * GROUP // 4, (group + 1) * GROUP // 4):
                # A float64 normal takes two words, of two counters.
                for half in (np.uint32(0), SECOND_WORD):
                    four = kernels.philox(element, row, layer, np.uint32(stream | half), k0, k1)
                    for word in four:
                        out[at] = word
                        at += 1
    return out


def normals(seed, layer):
    """Return the normals of one layer as words, by the normal distribution function."""
    values = _normals(np.uint64(seed), layer, kernels.Stream.ROWS)
    return (ndtr(values) * 2.0**32).astype(np.uint64).astype(np.uint32)


@njit
def _normals(key, layer, stream):
    out = np.empty(WIDTH * BATCH)
    at = 0
    for first in range(0, WIDTH, GROUP):
        for element in range(BATCH):
            kernels.normals(out[at : at + GROUP], element, first, layer, 0, key, stream)
            at += GROUP
    return out
