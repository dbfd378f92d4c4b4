"""Damaged and hostile files: each load gives the true values or an error of the library.

Cases run in a process with a limit of its address space.  A crash, a hang, an error of another type
and a wrong value are findings; after a crash or a hang the next process continues.
"""

from __future__ import annotations

import functools
import io
import json
import multiprocessing
import os
import random
import shutil
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import bnmc
from bench.reliability.counting import Counting
from bench.reliability.stored_runs import die_with_parent
from bench.report import Report
from bnmc.cli.inputs import read_input, read_states
from bnmc.errors import BnmcError
from bnmc.experiments.kept import opened
from bnmc.simulation import run as simulating
from bnmc.simulation.runs import Run
from bnmc.simulation.store import parts
from bnmc.simulation.store.parts import with_facts, without_facts
from bnmc.simulation.store.zarr_arrays import StoredArrays
from bnmc.simulation.tiles import Grid

#: Bytes that a process may have in its address space.
ADDRESS_SPACE = 6 << 30
#: Longest time of a case, and time after which its process is killed, in seconds.
LONGEST, HANGS = 20.0, 120.0
#: Targets with their shares of the cases.
TARGETS = {"store": 40, "forged store": 20, "part of an experiment": 20, "input": 20}
KEY = 3


def add_files(report: Report, counting: Counting) -> None:
    """Load drawn files in processes that may crash."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, counting.until_interrupted():
        while not counting.is_over():
            results: Any = context.Queue()
            at = context.Value("q", counting.next, lock=False)
            last = counting.first + counting.count
            arguments = (counting.seed, counting.next, last, folder, at, results)
            child = context.Process(target=_load_all, args=arguments)
            child.start()
            since, seen = time.monotonic(), at.value
            while child.is_alive() and not counting.is_over():
                if at.value != seen:
                    since, seen = time.monotonic(), at.value
                elif time.monotonic() - since > HANGS:
                    counting.findings.append(f"file {seen}: a hang")
                    break
                _take(counting, results)
                counting.tell()
                time.sleep(0.1)
            alive = child.is_alive()
            child.kill()
            child.join()
            _take(counting, results)
            if counting.is_over() or child.exitcode == 0:
                continue
            if not alive:
                counting.findings.append(f"file {at.value}: exit status {child.exitcode}")
            counting.ends["crash or hang"] += 1
            counting.next = at.value + 1
    counting.add_to(report, "Damaged and hostile files", "crashes, hangs, other errors and values")


def _take(counting: Counting, results: Any) -> None:
    """Count the results that a process sent."""
    while not results.empty():
        number, ends, findings = results.get()
        counting.ends.update(ends)
        counting.findings += findings
        counting.next = number + 1


# --- in a process -------------------------------------------------------------------------------


def _load_all(seed: int, first: int, last: int, folder: str, at: Any, results: Any) -> None:
    die_with_parent()
    _limit_memory()
    warnings.simplefilter("ignore")
    simulating.grid_of = _grid_of
    files = Files(Path(folder) / str(os.getpid()))
    for number in range(first, last):
        at.value = number
        rng = random.Random(f"{seed} file {number}")
        target = rng.choices(list(TARGETS), list(TARGETS.values()))[0]
        shown: list[str] = [target]
        begun = time.perf_counter()
        findings = []
        try:
            end = files.load(target, rng, shown)
        except BnmcError as error:
            end = f"raises {type(error).__name__}"
        except Exception as error:
            end = "finding"
            findings.append(f"{type(error).__name__}: {error}")
        if time.perf_counter() - begun > LONGEST:
            findings.append(f"{time.perf_counter() - begun:.0f} s")
        findings = [f"file {number}: {' '.join(shown)}: {one}" for one in findings]
        results.put((number, {f"{target}: {end}": 1}, findings))
    results.close()
    results.join_thread()


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))


def _grid_of(run: Run, *_: Any) -> Grid:
    block = min(7, run.recorded.count)
    return Grid.of_slots(run.chains, run.recorded, min(2, run.chains), block)


class Files:
    """The sound files, and what is in them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.store, self.other = folder / "store.zarr", folder / "other.zarr"
        self.run = stored(self.store)
        stored(self.other, rng=KEY + 1)
        self.expected = stored(None)
        self.x = np.random.default_rng(0).standard_normal((6, 4))
        np.savez(folder / "x.npz", x=self.x)
        self.part = {"values": self.x, "text": "é", "run": [1, 2.5, None, True]}
        kept = opened(folder / "kept", "figure", False, KEY)
        other = opened(folder / "others", "figure", False, KEY + 1)
        assert kept is not None
        assert other is not None
        kept.put(0, self.part)
        other.put(0, {"values": 2.0 * self.x})

    def load(self, target: str, rng: random.Random, shown: list[str]) -> str:
        """Damage a copy of a file and load it; raise if it gives other values."""
        loaders: dict[str, Callable[[random.Random, list[str]], str]] = {
            "store": functools.partial(self._store, damage_store),
            "forged store": functools.partial(self._store, forge_store),
            "part of an experiment": self._part,
            "input": self._input,
        }
        return loaders[target](rng, shown)

    def _store(self, damage: Callable[..., None], rng: random.Random, shown: list[str]) -> str:
        path = self.folder / "hostile.zarr"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self.store, path)
        damage(path, self.other, rng, shown)
        reader = StoredArrays(
            path, ("gram", "eigenvalues"), len(self.expected.layers), self.run.observables.identity
        )
        try:
            for name in ("gram", "eigenvalues"):
                _require_same(reader[name], self.expected[name])
            ends = "read"
        except BnmcError:
            ends = "not read"
        run = stored(path)
        for name in ("gram", "eigenvalues"):
            _require_same(run[name], self.expected[name])
        for name, values in self.expected.final_state.arrays.items():
            _require_same(run.final_state.arrays[name], values)
        _require_same(run.to_xarray()["layer"].to_numpy(), self.expected.layers)
        return f"{ends}, then resumed with the same bits"

    def _part(self, rng: random.Random, shown: list[str]) -> str:
        folder = self.folder / "hostile"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder / "kept", folder)
        file = folder / rng.choice(["part-0000.npz"] * 5 + ["experiment.json"])
        shown.append(file.name)
        content = file.read_bytes()
        kind = rng.randrange(3)
        if kind == 0 and file.suffix == ".npz":
            shown.append("of another seed")
            shutil.copy(self.folder / "others" / file.name, file)
        elif kind == 1 and file.suffix == ".npz":
            file.write_bytes(hostile_archive(rng, content, shown))
        else:
            file.write_bytes(damaged_bytes(rng, content, shown))
        kept = opened(folder, "figure", False, KEY)
        assert kept is not None
        part = kept.get(0)
        if part is None:
            return "made again"
        _require_same(part["values"], self.x)
        if {**part, "values": 0} != {**self.part, "values": 0}:
            raise AssertionError("another part")
        return "true values"

    def _input(self, rng: random.Random, shown: list[str]) -> str:
        file = self.folder / "hostile.npz"
        content = (self.folder / "x.npz").read_bytes()
        is_archive = rng.random() < 0.4
        make = hostile_archive if is_archive else damaged_bytes
        file.write_bytes(make(rng, content, shown))
        read = rng.choice([read_input, read_states])
        found = read(file)
        # A hostile archive may be a sound one with other values.
        if not is_archive:
            _require_same(found, self.x)
        return "true values" if not is_archive else "values of the archive"


def stored(path: Path | None, **options: Any) -> bnmc.Trajectory:
    """Return the run of these cases."""
    settings = {
        "chains": 4, "rng": KEY, "threads": 1, "observables": ["gram", "eigenvalues"],
        "store": path, **options,
    }  # fmt: skip
    return bnmc.simulate(bnmc.Chain(20, 3, "relu"), 20, **settings)


def _require_same(found: Any, expected: Any) -> None:
    if not np.array_equal(found, expected):
        raise AssertionError("other values")


# --- damage -------------------------------------------------------------------------------------


def damage_store(path: Path, other: Path, rng: random.Random, shown: list[str]) -> None:
    """Damage some files of a store, or exchange them for other ones."""
    inside = sorted(one for one in path.rglob("*") if one.is_file())
    for _ in range(rng.choice([1, 1, 2, 4])):
        victim = rng.choice(inside)
        # What was made longer than memory cannot be read here either.
        if victim.exists() and victim.stat().st_size > 1 << 30:
            continue
        shown.append(str(victim.relative_to(path)))
        kind = rng.randrange(7)
        if kind == 0:
            shown.append("removed")
            victim.unlink(missing_ok=True)
        elif kind == 1:
            shown.append("of the other run")
            shutil.copy(other / victim.relative_to(path), victim)
        elif kind == 2:
            second = rng.choice(inside)
            shown.append(f"exchanged with {second.relative_to(path)}")
            if victim.exists() and second.exists() and second.stat().st_size <= 1 << 30:
                one, two = victim.read_bytes(), second.read_bytes()
                victim.write_bytes(two)
                second.write_bytes(one)
        elif kind == 3:
            shown.append("longer than memory")
            if victim.exists():
                os.truncate(victim, 1 << rng.choice([34, 40]))
        elif victim.exists():
            victim.write_bytes(damaged_bytes(rng, victim.read_bytes(), shown))


def damaged_bytes(rng: random.Random, content: bytes, shown: list[str]) -> bytes:
    """Return bytes that are flipped, removed, repeated, permuted or replaced."""
    found = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 8])):
        at = rng.randrange(len(found) + 1)
        kind = rng.choice(["flipped", "cut", "removed", "repeated", "permuted", "replaced"])
        shown.append(f"{kind} at {at}")
        if kind == "flipped" and at < len(found):
            found[at] ^= 1 << rng.randrange(8)
        elif kind == "cut":
            del found[at:]
        elif kind == "removed":
            del found[at : at + rng.randrange(1, 20)]
        elif kind == "repeated":
            found[at:at] = found[max(0, at - 9) : at]
        elif kind == "permuted":
            part = list(found[at : at + 16])
            rng.shuffle(part)
            found[at : at + 16] = bytes(part)
        else:
            found[at : at + 4] = rng.randbytes(4)
    return bytes(found)


HEADERS = [
    "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000, 1000000000)}",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 3)}",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (400000000,)}",
    "{'descr': '|O', 'fortran_order': False, 'shape': (2, 3)}",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (6, 4)}",
    "{'descr': '<U1000000000', 'fortran_order': False, 'shape': (1,)}",
    "{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (2, 3)}",
    "(" * 3000,
    "",
]  # fmt: skip


def hostile_archive(rng: random.Random, content: bytes, shown: list[str]) -> bytes:
    """Return an archive with members of other headers, other names, or of a huge size."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {one: archive.read(one) for one in archive.namelist()}
    victim = rng.choice(sorted(members))
    kind = rng.choice(["header", "bomb", "empty", "renamed", "missing"])
    shown.append(f"{kind} {victim}")
    compression = zipfile.ZIP_STORED
    if kind == "header":
        text = rng.choice(HEADERS).encode()
        length = len(text).to_bytes(2, "little")
        members[victim] = b"\x93NUMPY\x01\x00" + length + text + members[victim][128:]
    elif kind == "bomb":
        compression = zipfile.ZIP_DEFLATED
        text = b"{'descr': '|u1', 'fortran_order': False, 'shape': (30000000,)}"
        header = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
        members[victim] = header + b"\0" * 30_000_000
    elif kind == "empty":
        members[victim] = b""
    elif kind == "renamed":
        members[f"../{victim}"] = members.pop(victim)
    else:
        del members[victim]
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, member in members.items():
            archive.writestr(name, member)
    return file.getvalue()


def forge_store(path: Path, _: Path, rng: random.Random, shown: list[str]) -> None:
    """Change metadata or the file of a tile, with the checksums that belong to the change."""
    kind = rng.choice(["chunks", "shape", "dtype", "codecs", "archive", "tile"])
    name = rng.choice(["gram", "eigenvalues", "layer"])
    shown += [kind, name]
    huge = rng.choice([0, 1, 10**3, 10**6, 2**31, 2**50, 2**63, -1, 2.5, "7"])
    if kind in ("chunks", "shape", "dtype", "codecs"):
        axis = rng.randrange(1 if name == "layer" else 3)
        codec = rng.choice(["zstd", "gzip", "blosc", "sharding_indexed", "crc32c", "nothing"])
        dtype = rng.choice(["float32", "int64", "complex128", "string", "bool", "float128"])

        def change(one: dict[str, Any]) -> None:
            if kind == "chunks":
                one["chunk_grid"]["configuration"]["chunk_shape"][axis] = huge
            elif kind == "shape":
                one["shape"][axis] = huge
            elif kind == "dtype":
                one["data_type"] = dtype
            else:
                one["codecs"].append({"name": codec, "configuration": {}})

        forge_metadata(path, name, change)
    else:
        part, block = rng.randrange(2), rng.randrange(3)
        file = path / "progress" / f"part-{part}-{block}.npz"
        if kind == "archive":
            file.write_bytes(hostile_archive(rng, file.read_bytes(), shown))
        else:
            forge_tile(file, rng)


def forge_metadata(path: Path, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the metadata of an array in both places, with their digests."""
    own = path / name / "zarr.json"
    document = json.loads(own.read_text())
    change(document)
    own.write_text(json.dumps(document))
    whole = json.loads((path / "zarr.json").read_text())
    copies = whole["consolidated_metadata"]["metadata"]
    change(copies[name])
    facts = whole["attributes"]
    facts["arrays"] = parts.digest_of_document(copies)
    facts["identity"] = parts._identity(facts)
    (path / "zarr.json").write_text(json.dumps(whole))


def forge_tile(file: Path, rng: random.Random) -> None:
    """Write the file of a tile again, with its digest: with drawn checksums or facts."""
    arrays, facts = without_facts(file.read_bytes())
    drawn = [0, 1, 2, 10**9, -1, 1.5, "1", [], [0, 0, 0], [[0]]]
    if rng.random() < 0.5:
        arrays["sums"] = np.array(rng.choice(drawn))
    else:
        facts[rng.choice(sorted(facts))] = rng.choice(["", "0", "x" * 1000])
    file.write_bytes(with_facts(arrays, facts))
