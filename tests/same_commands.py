"""Commands before and after a change: exit status, output, JSON and files.

    python tests/same_commands.py record before.json     # at the commit before
    python tests/same_commands.py compare before.json    # at the commit after

`compare` prints a diff of each command that differs. `-k TEXT` selects commands.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import json
import os
import pathlib
import re
import sys
import tempfile

os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")
os.environ["COLUMNS"] = "100"

import numpy as np

from bnmc import cli

COMMANDS = (
    *("simulate", "backprop", "fixed-point", "width", "stability", "phase", "compare-norms"),
    *("certify", "rates", "regularity", "check", "inspect", "bench", "info", "figure", "demo"),
)
CHAIN = "--width 40 --batch 4"
RUN = f"simulate {CHAIN} --depth 6 --chains 8 --seed 0"
GRADIENTS = f"backprop {CHAIN} --depth 6 --chains 8 --seed 0"
CERTIFY = "certify --width 60 --batch 4 --depth 5 --replicates 50 --seed 0"
RATES = "rates --width 60 --batch 4 --seed 0"
INSPECT = "inspect model:made --input rows.npy --labels labels.npy --seed 0"
NORMS = "compare-norms --width 60 --batch 4 --depth 6 --chains 3 --seed 0"
CHECK = "check --width 30 --batch 3 --size 200 --seed 0"
FIGURE = "figure bridging-1a --seed 1"

#: Command lines that also run with ``--json``.
WITH_JSON = (
    RUN,
    f"{RUN} --chains 1 --activation tanh --every 2 --gain 1.3",
    f"{RUN} --norm none --activation linear --weights pytorch",
    f"{RUN} --norm none --activation relu --depth 1500 --every 100 --gain 0.5",
    f"{RUN} --activation silu --batch 32",
    "simulate --input x.npy --width 8 --depth 3 --chains 4 --seed 0",
    "simulate --input x.npy --width 12 --depth 3 --chains 4 --seed 0 --first-layer",
    "simulate --input x.csv --samples-first --width 4 --depth 3 --chains 4 --seed 0 --batch 3",
    f"{RUN} --dtype float32 --sampler weights --eps 1e-3 --skip 0.5 --norm layer",
    GRADIENTS,
    f"{GRADIENTS} --loss cross-entropy --activation tanh --norm layer --skip 0.5",
    f"{GRADIENTS} --loss squared --classes 2 --eps 1e-3 --weights uniform --gain 1.1",
    "fixed-point",
    "fixed-point --activation tanh --batch 64 --width 1000",
    "fixed-point --activation linear --batch 5",
    "fixed-point --activation silu --batch 32 --gain 2",
    "fixed-point --norm layer --batch 6",
    "fixed-point --norm batch-uncentred --batch 6",
    "width --distance 0.1 --activation tanh --batch 8",
    "width --distance 3",
    "stability --activation silu --activation relu --batches 8,16,32",
    "stability --batches 3,5 --norm batch-uncentred",
    "phase --activation tanh --weight-variance 1.5 --bias-variance .05",
    "phase --activation relu --weight-variance 2",
    "phase --activation relu --weight-variance 3 --bias-variance 0.1",
    "phase --norm layer --activation relu",
    "phase --skip 1 --activation gelu --order pre-activation --norm layer",
    CERTIFY,
    f"{CERTIFY} --lag 8 --horizon 20 --tail-probability 0 --bias-variance 0.1",
    f"{CERTIFY} --norm layer --order activation-norm --gain 0.9 --threads 1 --no-progress",
    RATES,
    "regularity --width 16 --seed 0 --rtol 0.1",
    "regularity --width 16 --batch 4 --gamma 0.2 --rtol 0.1 --seed 0 --activation relu",
    CHECK,
    "check --width 3 --batch 3 --samples wrong.npy --seed 0",
    INSPECT,
    f"{INSPECT} --layers 0,2 --loss squared --networks 2 --eval --view sample",
    NORMS,
    f"{NORMS} --norm batch --norm layer --activation tanh --norm batch",
    FIGURE,
    "figure --list",
    "info",
    "bench --width 30 --batch 3 --seconds 0.01",
)
#: Other command lines, each in a folder of its own; ``;`` separates those of one folder.
OTHERS = (
    "",
    "--version",
    "--help",
    *(f"{name} --help" for name in COMMANDS),
    *(f"{line} --plot a.png" for line in (RUN, GRADIENTS, CERTIFY, RATES, INSPECT, NORMS, FIGURE)),
    "stability --batches 4,8 --plot a.png",
    f"{RUN} --plot a.svg --output run.npz; {RUN} --output run.npz; {RUN} --output run.npz --force",
    f"{RUN} --plot a.svg; {RUN} --plot a.svg; {RUN} --plot a.svg --force",
    f"{GRADIENTS} --plot a.png; {GRADIENTS} --plot a.png; {GRADIENTS} --plot a.png --force",
    f"{RUN} --store s.zarr; {RUN} --store s.zarr --json",
    f"{RUN} --store s.zarr --output s.zarr",
    f"{RUN} --output run.nc --json",
    f"{RUN} --progress",
    f"{RUN} --progress --no-progress",
    f"{GRADIENTS} --store parts; {GRADIENTS.replace(' --seed 0', '')} --store parts --json",
    f"{GRADIENTS} --progress",
    f"{RATES} --norm none --activation linear",
    f"{RATES} --json --plot a.pdf",
    f"{FIGURE} --json data.json --plot a.png; {FIGURE} --json data.json",
    f"{FIGURE} --json --plot a.png",
    "figure --list rates",
    "figure",
    "figure bridging-1",
    "demo --depth 10 --chains 4 --plot d.png --threads 1",
    "demo --depth 0",
    # What is not allowed.
    "simulat",
    "simulate --activation rleu",
    "simulate --width x",
    "simulate --width 0",
    "simulate --chains 0",
    "simulate --depth -1",
    "simulate --seed -1",
    "simulate --threads 0",
    "simulate --batch 1",
    "simulate --array a",
    "simulate --input none.npy",
    "simulate --input x.txt",
    "simulate --input x.npy --batch 9",
    "simulate --input damaged.npy",
    f"{RUN} --plot a.xyz",
    f"{RUN} --plot missing/a.png",
    f"{RUN} --output a.xyz",
    f"{RUN} --sampler gibbs",
    "backprop --loss hinge",
    "backprop --loss cross-entropy --classes 1",
    "fixed-point --activation rulu",
    "fixed-point --batch 1",
    "fixed-point --norm none",
    "width --distance 0",
    "stability --batches 8;9".replace(";", "/"),
    "stability --activation rulu",
    "phase --norm batch",
    "phase --weight-variance -1",
    "compare-norms --batch 2",
    "compare-norms --norm btch",
    "certify --replicates 1",
    "certify --norm none",
    "certify --width 100000 --batch 100 --no-progress",
    "certify --hours 0",
    f"{CERTIFY} --activation silu --batch 40 --width 200",
    "rates --batch 1",
    "check --samples x.txt",
    "check --alpha 2",
    "inspect model --input rows.npy",
    "inspect model:none --input rows.npy",
    "inspect model:number --input rows.npy",
    "inspect model:made --input rows.npy --loss hinge",
    "regularity --gamma nan",
    "regularity --rtol 0",
    "bench --seconds 0",
)
MODEL = """
import torch
number = 3
def made():
    return torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(),
                               torch.nn.Linear(8, 3))
"""
#: Numbers that differ between equal calls: durations, and speeds of the machine.
VOLATILE = (
    (r'("?(?:compile[_ ])?seconds"?:? )[\d.e+-]+', r"\1*"),
    (r'("(?:layers|normals)_per_second": |"speed": )[\d.e+-]+', r"\1*"),
    (r"\b\d+\.\d s\b", "* s"),
    (r"about \d+ s left", "about * s left"),
    (r"(openblas [^,]+, )\d+", r"\1*"),
    (r'(kernel cache(?:": "|  +))[^"\s]+', r"\1*"),
    (r'(megabytes in the cache|kernels in the cache)("?:?\s+)[\d.]+', r"\1\2*"),
)


def _inputs(folder):
    rng = np.random.default_rng(0)
    np.save(folder / "x.npy", rng.standard_normal((12, 4)))
    np.savetxt(folder / "x.csv", rng.standard_normal((5, 4)), delimiter=",")
    np.save(folder / "rows.npy", rng.standard_normal((6, 5)).astype(np.float32))
    np.save(folder / "labels.npy", np.array([0, 1, 2, 0, 1, 2]))
    np.save(folder / "wrong.npy", rng.standard_normal((300, 3, 3)) + 1.0)
    (folder / "damaged.npy").write_bytes(b"\x93NUMPY nothing")
    (folder / "model.py").write_text(MODEL)
    return {path.name for path in folder.iterdir()}


def _sorted(lines):
    """Return the lines of an output with the names of its JSON document in alphabetical order."""
    if "{" not in lines or "}" not in lines:
        return lines
    begin, end = lines.index("{"), lines.index("}") + 1
    document = json.loads("\n".join(lines[begin:end]).replace(": *", ': "*"'))
    text = json.dumps(document, indent=2, sort_keys=True).splitlines()
    return [*lines[:begin], *text, *lines[end:]]


def outcome_of(line):
    """Return statuses, outputs and written files of command lines in an empty folder."""
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        before = _inputs(folder) | {"__pycache__"}
        os.chdir(folder)
        sys.modules.pop("model", None)
        for part in line.split(";"):
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = cli.main(part.split())
            texts = [stream.getvalue().replace(name, "FOLDER") for stream in (out, err)]
            for pattern, replacement in VOLATILE:
                texts = [re.sub(pattern, replacement, text) for text in texts]
            results += [f"$ bnmc {part.strip()}", f"status {status}", *texts[0].splitlines()]
            # Compilation is announced if a kernel is not in the cache.
            results += ["stderr:", *(e for e in texts[1].splitlines() if "compiling" not in e)]
            if "--json" in part and status == 0 and out.getvalue().startswith("{"):
                json.loads(out.getvalue())
        results += ["files:", *sorted({path.name for path in folder.iterdir()} - before)]
        os.chdir("/")
    return results


def _lines(word):
    lines = (*OTHERS, *WITH_JSON, *(f"{line} --json" for line in WITH_JSON))
    if "bench" not in word:  # its table has the widths of its numbers
        lines = tuple(line for line in lines if not line.startswith("bench --width"))
    return [line for line in lines if word in line]


def main():
    """Record, or compare with a record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["record", "compare"])
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("-k", default="")
    options = parser.parse_args()
    file = options.file.resolve()
    if options.action == "record":
        file.write_text(
            json.dumps({line: outcome_of(line) for line in _lines(options.k)}, indent=1)
        )
        return 0
    before, different = json.loads(file.read_text()), 0
    for line in _lines(options.k):
        old, new = _sorted(before.get(line, [])), _sorted(outcome_of(line))
        if old != new:
            different += 1
            print(f"\n=== bnmc {line}")
            print("\n".join(difflib.unified_diff(old, new, lineterm="", n=1)))
    print(f"{different} of {len(_lines(options.k))} differ")
    return int(bool(different))


if __name__ == "__main__":
    raise SystemExit(main())
