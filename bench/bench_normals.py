"""Normals per second on one core: the library's kernel, NumPy's generators, and MKL's.

MKL makes a float64 normal of one 32-bit word: its uniforms are multiples of 2**-32, and so are the
probabilities of its normals, to errors of about 1e-10.  The library takes 64 bits.
"""

import numpy as np

from bench.peers import installed
from bench.roofline import DTYPES
from bench.turns import BILLIONS, Candidate, fastest, repeating
from bnmc.testing.machine_limits import peak_normals

BLOCK = 1 << 15  # normals per call of the others: it hides the cost of a call, and is cached
FLOAT32_FLOOR = 0.6  # 1e9 normals per second and core
FLOAT64_FLOOR = 1.5  # times the fastest of NumPy
MKL_FLOOR = 1.0  # times the random bits that MKL turns into float64 normals

#: Random bits of a normal of the library and of NumPy's ziggurat.
BITS = {"float32": 32, "float64": 64}
MKL = "MKL Philox ICDF float64"


def test_normals(turns):
    """All generators fill a block that fits the cache."""
    turns.group = "Standard normals on one core"
    runs = {
        f"NumPy {generator.__name__} {dtype}": numpy_normals(generator, dtype)
        for generator in (np.random.Philox, np.random.PCG64, np.random.SFC64)
        for dtype in DTYPES
    }
    doubles = [name for name in runs if name.endswith("float64")]
    if installed("mkl_random"):
        runs[MKL] = mkl_normals()
    peaks = {dtype: peak_normals(dtype) for dtype in DTYPES}
    # The repetitions are in compiled code, as in the samplers, on a block that stays in the cache.
    ours = [
        Candidate(f"bnmc {dtype}", lambda times, run=peak.run: lambda: run(times), peak.units,
                  BILLIONS)
        for dtype, peak in peaks.items()
    ]  # fmt: skip
    others = [Candidate(name, repeating(run), BLOCK, BILLIONS) for name, run in runs.items()]
    timings = turns([*ours, *others], rounds=turns.of(15, 3), seconds=0.05)
    single, double = (timings[candidate.name] for candidate in ours)
    for name in timings:
        bits = mkl_bits() if name == MKL else BITS[name.split()[-1]]
        turns.add(name, {"random bits of a normal": bits})
    turns.hold("bnmc float32", "1e9 a second", 1e-9 / single.median, at_least=FLOAT32_FLOOR)
    over = double.speed_over(timings[fastest(timings, doubles)])
    turns.hold("bnmc float64", "x NumPy", over, at_least=FLOAT64_FLOOR)
    if MKL in runs:
        # MKL makes a normal of half of the bits, so its normals are not those of float64.
        bits = double.speed_over(timings[MKL]) * BITS["float64"] / mkl_bits()
        turns.hold("bnmc float64", "x random bits of MKL", bits, at_least=MKL_FLOOR)


def numpy_normals(generator, dtype):
    """Return a run of Generator.standard_normal (ziggurat) into an existing block."""
    rng = np.random.Generator(generator(0))
    out = np.empty(BLOCK, dtype)
    return lambda: rng.standard_normal(dtype=out.dtype.type, out=out)


def mkl_normals():
    """Return a run of mkl_random's standard_normal, which has float64 only and allocates."""
    import mkl_random

    state = mkl_random.MKLRandomState(0, brng="PHILOX4X32X10")
    return lambda: state.standard_normal(size=BLOCK, method="ICDF")


def mkl_bits():
    """Return the random bits of a uniform of MKL's generator, which its normals have, too."""
    import mkl_random

    uniforms = mkl_random.MKLRandomState(0, brng="PHILOX4X32X10").uniform(size=BLOCK)
    return next(bits for bits in range(54) if np.all(uniforms * 2.0**bits % 1.0 == 0.0))
