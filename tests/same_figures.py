"""Figures at small sizes before and after a change: which numbers, texts and pictures differ?

    python tests/same_figures.py record before.npz    # at the commit before
    python tests/same_figures.py compare before.npz   # at the commit after

A figure is recorded with its data (bits, dimensions and attributes), table, findings, text and the
description of its picture, at the sizes of `figure_sizes.py`.  `compare` prints what differs, and
the figures that take at least 20 % and 0.5 s longer.  `-k WORD` selects figures by name (several
words: any of them), and `--times` leaves out differences of what the figure `scale` has timed.
"""

from __future__ import annotations

import argparse
import json
import os
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")
os.environ.setdefault("MPLBACKEND", "agg")

import numpy as np
from approved_pictures import describe
from figure_sizes import FIGURES, run

from bnmc import Estimate

# --- a figure as arrays and texts


def _text(value):
    return np.array(str(value))


def _cell(cell):
    """Return a cell as text, with all digits."""
    if isinstance(cell, Estimate):
        fields = (*map(repr, map(float, (cell.value, cell.stderr, *cell.ci))), str(cell.n))
        return f"{', '.join(fields)}, {cell.method}, {cell.level}"
    return f"{type(cell).__name__} {cell!r}" if not isinstance(cell, str) else cell


def _leaves(made):
    """Return the arrays and texts of a figure by path."""
    leaves = {}
    for name, variable in made.data.variables.items():
        values = np.asarray(variable.values)
        leaves[f"data {name}"] = values if values.dtype.kind in "biufc" else _text(values.tolist())
        leaves[f"data {name} dims"] = _text((variable.dims, values.dtype.kind))
        leaves[f"data {name} attributes"] = _text(sorted(variable.attrs.items()))
    leaves["variables"] = _text((sorted(made.data.data_vars), sorted(made.data.coords)))
    for name, value in made.data.attrs.items():
        array = np.asarray(value)
        leaves[f"attribute {name}"] = array if array.dtype.kind in "biuf" else _text(value)
    leaves["columns"] = _text(list(made.table.columns))
    leaves["rows"] = _text(len(made.table.rows))
    for number, row in enumerate(made.table.rows):
        leaves[f"row {number}"] = _text(" | ".join(map(_cell, row)))
    leaves["findings"] = _text("\n".join(made.findings))
    leaves["text"] = _text(made)
    leaves["name"] = _text(made.name)
    leaves["picture"] = _text(json.dumps(describe(made, made.plot()), ensure_ascii=False))
    return leaves


def _selected(words):
    for name in FIGURES:
        if not words or any(word in name for word in words):
            yield name


def _timed(name):
    begun = time.perf_counter()
    made = run(name, threads=2)
    seconds = time.perf_counter() - begun
    return _leaves(made), seconds


# --- comparison

#: Paths that hold times, which differ in each run: those of the figure of large sizes.
_TIMED = ("data speed", "data pace", "row", "findings", "text", "picture")


def _excerpts(before, after):
    """Return both texts from a little before their first difference on."""
    pairs = zip(before, after, strict=False)
    first = next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(before), len(after)))
    start = max(first - 40, 0)
    return f"\n    {before[start : start + 160]!r}\n    {after[start : start + 160]!r}"


def _differences(before, after):
    """Yield each path that differs, with how it does."""
    for path in [*before, *(path for path in after if path not in before)]:
        a, b = before.get(path), after.get(path)
        if a is None or b is None:
            yield path, "only after" if a is None else "only before"
        elif a.dtype.kind == "U" or b.dtype.kind == "U":
            if str(a) != str(b):
                yield path, _excerpts(str(a), str(b))
        elif a.shape != b.shape or a.dtype != b.dtype:
            yield path, f"{a.dtype} {a.shape}, now {b.dtype} {b.shape}"
        elif a.tobytes() != b.tobytes():
            with np.errstate(all="ignore"):
                size = np.nanmax(np.abs(a.astype(float)), initial=0.0) or 1.0
                change = np.nanmax(np.abs(a.astype(float) - b), initial=0.0)
            missing = int(np.sum(np.isnan(a.astype(float)) != np.isnan(b.astype(float))))
            yield path, f"{change / size:.2g} relative, {missing} NaN differ"


def _compare(arguments):
    with np.load(arguments.file) as stored:
        index = json.loads(str(stored["index"]))
        arrays = {key: stored[key] for key in stored.files if key != "index"}
    slower, differences, count = [], 0, 0
    for name in _selected(arguments.k.split()):
        after, seconds = _timed(name)
        before = {path: arrays[key] for path, key in index[name]["paths"].items()}
        count += 1
        for path, how in _differences(before, after):
            if not (arguments.times and name == "scale" and path.startswith(_TIMED)):
                differences += 1
                print(f"{name} | {path}: {how}", flush=True)
        if seconds > max(1.2 * index[name]["seconds"], index[name]["seconds"] + 0.5):
            slower.append(f"{name}: {index[name]['seconds']:.1f} s, now {seconds:.1f} s")
    if slower:
        print("Slower:", *slower, sep="\n")
    print(f"{count} figures, {differences} differences")


def _record(arguments):
    index, arrays = {}, {}
    for name in _selected(arguments.k.split()):
        leaves, seconds = _timed(name)
        paths = {path: f"v{len(arrays) + place}" for place, path in enumerate(leaves)}
        arrays |= {key: leaves[path] for path, key in paths.items()}
        index[name] = {"paths": paths, "seconds": seconds}
        print(f"{name}: {seconds:.1f} s", flush=True)
    np.savez_compressed(arguments.file, index=json.dumps(index), **arrays)


def _main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("do", choices=("record", "compare"))
    parser.add_argument("file")
    parser.add_argument("-k", default="", metavar="WORDS")
    parser.add_argument("--times", action="store_true")
    arguments = parser.parse_args()
    {"record": _record, "compare": _compare}[arguments.do](arguments)


if __name__ == "__main__":
    _main()
