"""The first steps of a user, in the environment of an installed package: ``make smoke``.

The program needs the extra `cli` and nothing from the source tree.
"""

import importlib.metadata
import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np

import bnmc
from bnmc._kernels.compile_time import compile_seconds
from bnmc._kernels.kernel_cache import carried


def main() -> None:
    """Simulate, predict, certify, and run the command line."""
    warnings.simplefilter("error")
    assert importlib.metadata.version("bnmc") == bnmc.__version__
    assert Path(sys.prefix) in Path(bnmc.__file__).parents, "this is not the installed package"

    chain = bnmc.Chain(width=1000, batch=5, activation="relu")
    begun = time.process_time()
    first = bnmc.simulate(chain, 3, rng=0)
    seconds = time.process_time() - begun
    if carried() is not None:
        assert compile_seconds() == 0.0, "the kernels of the wheel are not used"
        print(f"first run from the kernels of the wheel ({first.cpu}): {seconds:.2f} s of CPU time")
        program = f"import bnmc; print(bnmc.simulate({chain!r}, 3, rng=0).gram.tobytes().hex())"
        compiled = subprocess.run(
            [sys.executable, "-c", program.replace("Chain(", "bnmc.Chain(", 1)],
            env={**os.environ, "BNMC_KERNELS": "none"}, check=True, capture_output=True, text=True,
        )  # fmt: skip
        assert bytes.fromhex(compiled.stdout) == first.gram.tobytes()
    theory = bnmc.MeanField(chain)
    star, expected = theory.fixed_point(), theory.fluctuations().mean_square(1000).value
    for dtype in ("float64", "float32"):
        run = bnmc.simulate(chain, 60, chains=20, rng=0, dtype=dtype)
        squares = (bnmc.gram.distance(run.gram[:, 20:], star) ** 2).mean(axis=1)
        # Student's t with 19 degrees of freedom exceeds 9 with probability 3e-8.
        assert abs(squares.mean() - expected) < 9 * squares.std(ddof=1) / 20**0.5

    custom = bnmc.Chain(width=50, batch=3, activation=lambda x: x + abs(x))
    twice = bnmc.simulate(custom, 5, rng=1)
    assert np.array_equal(twice.gram, bnmc.simulate(custom, 5, rng=1, threads=1).gram)

    bound = bnmc.mixing.tv_bound(bnmc.Chain(50, 4, "tanh"), 5, chains=200, rng=0)
    assert np.all(np.diff(bound.bound) <= 0.0)

    command = [Path(sys.executable).with_name("bnmc"), "simulate", "--width", "100", "--batch", "5"]
    printed = subprocess.run([*command, "--json"], check=True, capture_output=True, text=True)
    assert json.loads(printed.stdout)["settings"]["width"] == 100
    print(f"bnmc {bnmc.__version__} on Python {sys.version.split()[0]}: all steps passed")


if __name__ == "__main__":
    main()
