"""Damaged and hostile files: each load gives the true values or an error of the library.

Cases run in a process with a limit of its address space.
"""

import functools
import os
import random
import shutil
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

import fuzzing
import numpy as np
import small_stores
from damaged_stores import forge
from damaging import damage_store, damaged_bytes, hostile_archive

import bnmc
from bnmc.cli.inputs import read_input, read_states
from bnmc.errors import BnmcError
from bnmc.simulation import run as simulating
from bnmc.simulation.store.parts import with_facts, without_facts
from bnmc.simulation.tiles import Grid

#: Bytes that a process may have in its address space.
ADDRESS_SPACE = 6 << 30
#: Longest time of a case, in seconds.
LONGEST = 20.0
KEY = 3
NAMES = ("gram", "eigenvalues")


class Files:
    """Sound files, and what is in them; a call damages and loads copies."""

    def __init__(self, seed, folder):
        limit_memory()
        warnings.simplefilter("ignore")
        simulating.grid_of = _grid_of
        self.seed = seed
        self.folder = folder = Path(folder) / str(os.getpid())
        folder.mkdir()
        self.store, self.other = folder / "store.zarr", folder / "other.zarr"
        self.run = stored(self.store)
        stored(self.other, rng=KEY + 1)
        self.expected = stored(None)
        self.x = np.random.default_rng(0).standard_normal((6, 4))
        np.savez(folder / "x.npz", x=self.x)
        self.gradients = backward(folder / "parts")
        backward(folder / "other parts", rng=KEY + 1)

    def __call__(self, number):
        """Load the files of a case; return its end, and findings."""
        targets = {
            functools.partial(self._store, damage_store): 40,
            functools.partial(self._store, forge_store): 20,
            self._parts: 20,
            self._input: 20,
        }
        rng = random.Random(f"{self.seed} file {number}")
        load = rng.choices(list(targets), list(targets.values()))[0]
        shown, findings, begun = [], [], time.perf_counter()
        try:
            end = load(rng, shown)
        except BnmcError as error:
            end = f"raises {type(error).__name__}"
        except Exception as error:
            end = "finding"
            findings.append(f"file {number}: {shown}: {type(error).__name__}: {error}")
        if time.perf_counter() - begun > LONGEST:
            findings.append(f"file {number}: {shown}: {time.perf_counter() - begun:.0f} s")
        return end, findings

    def _store(self, damage, rng, shown):
        path = self.folder / "hostile.zarr"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self.store, path)
        damage(path, rng, shown, self.other)
        end = "not read"
        try:
            self._require_true_values(path)
            end = "read"
        except BnmcError:
            pass
        run = stored(path)
        for name in NAMES:
            _require_same(run[name], self.expected[name])
        for name, values in self.expected.final_state.arrays.items():
            _require_same(run.final_state.arrays[name], values)
        _require_same(run.to_xarray()["layer"].to_numpy(), self.expected.layers)
        self._require_true_values(path)  # on the disk, too
        return f"{end}, then resumed with the same bits"

    def _require_true_values(self, path):
        reader = replace(self.run.observables, path=path)
        for name in NAMES:
            _require_same(reader[name], self.expected[name])

    def _parts(self, rng, shown):
        folder, other = self.folder / "hostile", self.folder / "other parts"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder / "parts", folder)
        files = sorted(file for file in folder.rglob("*.npz") if file.is_file())
        if rng.random() < 0.3:
            file = rng.choice(files)
            shown.append(file.name)
            file.write_bytes(hostile_archive(rng, file.read_bytes(), shown))
        else:
            damage_store(folder, rng, shown, other)
        _require_same(backward(folder), self.gradients)
        return "the same gradients"

    def _input(self, rng, shown):
        file = self.folder / "hostile.npz"
        content = (self.folder / "x.npz").read_bytes()
        is_archive = rng.random() < 0.4
        file.write_bytes(
            hostile_archive(rng, content, shown) if is_archive else damaged_bytes(rng, content)
        )
        values = rng.choice([read_input, read_states])(file)
        # A hostile archive may be a sound one with other values.
        if not is_archive:
            _require_same(values, self.x)
        return "true values" if not is_archive else "values of the archive"


class Calls:
    """Hostile calls of `tests/fuzzing.py`, with other seeds than those of the tests."""

    #: Calls of each group, for each 1000.
    SHARES = {  # noqa: RUF012
        "functions": 640, "runs": 150, "files": 120, "pickles": 40, "command line": 25,
        "written": 15, "stores": 10,
    }  # fmt: skip

    def __init__(self, seed, folder):
        self.seed, self.folder = seed, Path(folder)

    def __call__(self, number):
        rng = random.Random(f"{self.seed} call {number}")
        group = rng.choices(list(self.SHARES), list(self.SHARES.values()))[0]
        try:
            return fuzzing.fuzz(group, 10**6 + number, self.folder), []
        except fuzzing.Finding as finding:
            return "finding", [str(finding)]


def limit_memory():
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))


def _grid_of(run, *_):
    block = min(7, run.recorded.count)
    return Grid.of_slots(run.chains, run.recorded, min(2, run.chains), block)


def stored(path, **options):
    """Return the run of these cases."""
    return small_stores.run(path, observables=NAMES, **options)


def backward(path, rng=KEY):
    """Return the gradient norms of a backward pass, kept in a folder."""
    chain = bnmc.Chain(20, 3, "tanh")
    return bnmc.backpropagate(chain, 5, chains=4, rng=rng, threads=1, store=path).log_gradient_norm


def _require_same(values, expected):
    if not np.array_equal(values, expected):
        raise AssertionError("other values")


# --- forged stores ------------------------------------------------------------------------------


def forge_store(path, rng, shown, other):
    """Change metadata or the file of a tile, with the checksums that belong to the change."""
    kind = rng.choice(["chunks", "shape", "dtype", "codecs", "archive", "tile"])
    name = rng.choice(["gram", "eigenvalues", "layer"])
    shown += [kind, name]
    huge = rng.choice([0, 1, 10**3, 10**6, 2**31, 2**50, 2**63, -1, 2.5, "7"])
    if kind in ("chunks", "shape", "dtype", "codecs"):
        axis = rng.randrange(1 if name == "layer" else 3)
        codec = rng.choice(["zstd", "gzip", "blosc", "sharding_indexed", "crc32c", "nothing"])
        dtype = rng.choice(["float32", "int64", "complex128", "string", "bool", "float128"])

        def change(array):
            if kind == "chunks":
                array["chunk_grid"]["configuration"]["chunk_shape"][axis] = huge
            elif kind == "shape":
                array["shape"][axis] = huge
            elif kind == "dtype":
                array["data_type"] = dtype
            else:
                array["codecs"].append({"name": codec, "configuration": {}})

        forge(path, name, change)
    else:
        part, block = rng.randrange(2), rng.randrange(3)
        file = path / "progress" / f"part-{part}-{block}.npz"
        if kind == "archive":
            file.write_bytes(hostile_archive(rng, file.read_bytes(), shown))
        else:
            forge_tile(file, rng)


def forge_tile(file, rng):
    """Write the file of a tile again, with its digest: with drawn checksums or facts."""
    arrays, facts = without_facts(file.read_bytes())
    values = [0, 1, 2, 10**9, -1, 1.5, "1", [], [0, 0, 0], [[0]]]
    if rng.random() < 0.5:
        arrays["sums"] = np.array(rng.choice(values))
    else:
        facts[rng.choice(sorted(facts))] = rng.choice(["", "0", "x" * 1000])
    file.write_bytes(with_facts(arrays, facts))
