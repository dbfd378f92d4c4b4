"""Compile the kernels of the commonest runs into a folder, for a wheel.

    python wheels/kernels.py FOLDER

A fresh process compiles for each level of processors in `bnmc._kernels.processor`, whatever
processor this machine has.  The first process runs the programs of `runs` on code for the lowest
level.  The others compile the same signatures and run nothing.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).parents[1] / "src"


def main(folder: Path) -> None:
    """Fill `folder` with one folder for each level."""
    sys.path.insert(0, str(SOURCES))
    from bnmc._kernels.processor import LEVELS, feature_text

    lowest = next(iter(LEVELS))
    for level in LEVELS:
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="bnmc-cache-") as cache:
            subprocess.run(
                [sys.executable, __file__, str(folder), level, lowest],
                env={
                    **{name: value for name, value in os.environ.items() if "NUMBA" not in name},
                    "PYTHONPATH": os.pathsep.join([str(SOURCES), *filter(None, sys.path[1:])]),
                    "NUMBA_CPU_NAME": level,
                    "NUMBA_CPU_FEATURES": feature_text(level),
                    "NUMBA_CACHE_DIR": cache,
                    "BNMC_KERNELS": "none",
                },
                check=True,
            )
        sizes = [path.stat().st_size for path in (folder / level).glob("*.nbc")]
        if not sizes:
            raise SystemExit(f"{level}: nothing was kept; is this Numba known to bnmc?")
        seconds = time.perf_counter() - begun
        print(f"{level}: {len(sizes)} kernels, {sum(sizes) / 1e6:.1f} MB, {seconds:.0f} s")


def compile_level(folder: Path, level: str, lowest: str) -> None:
    """Compile for one level, which the environment names, in this process."""
    from bnmc import Activation
    from bnmc._kernels.kernel_cache import recording
    from bnmc._kernels.scalar.activations import BUILTIN
    from bnmc.chain.activations import sigma_of

    known = [Activation.named(name) for name in BUILTIN]
    for activation in known:
        sigma_of(activation)
    with recording(folder / level):
        if level == lowest:
            runs(known)
        else:
            compile_again(folder / lowest)


def runs(activations: list) -> None:
    """Run the commonest calls, at small sizes."""
    import bnmc

    for dtype in ("float64", "float32"):
        for activation in activations:
            run(bnmc.Chain(16, 4, activation), dtype)
        run(bnmc.Chain(16, 4), dtype, sampler="weights")
        run(bnmc.Chain(2000, 24), dtype, threads=2)  # threads share the layers of a wide chain
    bnmc.mixing.tv_bound(bnmc.Chain(100, 4), 5, chains=100, rng=0)
    activations[0](0.0)


def run(chain, dtype: str, *, threads: int = 1, sampler: str = "auto") -> None:
    """Simulate two layers."""
    from bnmc import simulate

    simulate(chain, 2, rng=0, dtype=dtype, threads=threads, sampler=sampler)


def compile_again(source: Path) -> None:
    """Compile the signatures that the folder of another level has."""
    from bnmc._kernels.kernel_cache import entries_of

    for _, description, _, signature, *_ in entries_of(source):
        kernel_of(description.modname, description.qualname).compile(signature.args)


def kernel_of(module: str, function: str) -> Any:
    """Return the kernel of a function, whose name it need not have."""
    (kernel,) = {
        value
        for value in vars(importlib.import_module(module)).values()
        if getattr(getattr(value, "py_func", None), "__qualname__", None) == function
    }
    return kernel


if __name__ == "__main__":
    if len(sys.argv) == 2:
        main(Path(sys.argv[1]).absolute())
    else:
        compile_level(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
