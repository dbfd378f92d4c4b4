"""Command line of the benchmarks: run all or some, print tables, keep the figures."""

from __future__ import annotations

import argparse
import importlib
import shlex
import time
from collections.abc import Sequence

from bench.report import RESULTS, machine, usable_cores

# name: (module, function, what it measures); modules are imported only when they run
BENCHMARKS = {
    "normals": ("bench.normals", "benchmark", "normals a second on one core, against others"),
    "roofline": ("bench.roofline", "benchmark", "peaks of this machine"),
    "parts": ("bench.parts", "benchmark", "the parts of a layer, beside the peaks"),
    "simulate": ("bench.simulate", "benchmark", "simulate against peers and roofline"),
    "scaling": ("bench.simulate", "scaling", "cost of a layer in width and batch"),
    "conv": ("bench.convolutions", "benchmark", "Chain.conv against PyTorch drawing kernels"),
    "norms": ("bench.norms", "benchmark", "norms over the features against batch norm"),
    "large-batches": ("bench.large_batches", "benchmark", "layers of large batches, against BLAS"),
    "gradients": ("bench.gradients", "benchmark", "backpropagate: speed, memory, rates"),
    "gradients-cpu": ("bench.gradients", "processor_time", "backpropagate: processor time"),
    "mean_field": ("bench.mean_field", "benchmark", "fixed points, trajectories, gradients"),
    "infinite-width": (
        "bench.infinite_width",
        "benchmark",
        "tangent kernel of 2000 inputs, against NumPy",
    ),
    "fluctuations": ("bench.fluctuations", "benchmark", "fluctuations: measured over predicted"),
    "regularity": ("bench.regularity", "benchmark", "regularity constant, against a NumPy loop"),
    "mixing": ("bench.mixing", "benchmark", "certificates of mixing, against NumPy"),
    "gpu": ("bench.gpu", "benchmark", "GPU kernels: checks, peaks, peers, roofline"),
    "instructions": ("bench.instructions", "benchmark", "GPU instructions of a layer, emulated"),
    "embedding": ("bench.embedding", "benchmark", "calls from njit and C, and compiling them"),
    "testing": ("bench.same_law", "benchmark", "assert_same_law: false alarms, power, time"),
    "false-alarms": ("bench.same_law", "false_alarms", "assert_same_law: right layers that fail"),
    "faults": ("bench.faulty_layers", "benchmark", "assert_same_law: wrong layers by width"),
    "faults-larger": (
        "bench.faulty_layers",
        "larger",
        "assert_same_law: larger batches, more rows",
    ),
    "reliability": (
        "bench.reliability.parts",
        "benchmark",
        "kills, damage, cuts, hostile calls, long runs",
    ),
    "torch-rates": (
        "bench.torch_rates",
        "benchmark",
        "gradients in PyTorch beside the mean field",
    ),
    "torch-rates-width": (
        "bench.torch_rates",
        "over_width",
        "its bias at finite widths",
    ),
    "startup": ("bench.startup", "benchmark", "imports, first simulation, memory"),
}

#: Options of `reliability`, which passes them to one of its parts.
PART_OPTIONS = ("only", "count", "seed", "first", "minutes", "program")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the named benchmarks; the exit status is 1 when a full run missed a floor."""
    options = _parser().parse_args(arguments)
    names = options.names or list(BENCHMARKS)
    flags = ["--quick"] if options.quick else []
    part = {name: getattr(options, name) for name in PART_OPTIONS}
    part = {name: value for name, value in part.items() if value is not None}
    for name, value in part.items():
        flags += [f"--{name}", str(value)]
    command = "python -m bench " + shlex.join([*names, *flags])
    print(_heading(), flush=True)
    missed = []
    for name in names:
        module, function, what = BENCHMARKS[name]
        print(f"\n== {name}: {what}\n", flush=True)
        start = time.perf_counter()
        report = getattr(importlib.import_module(module), function)(quick=options.quick, **part)
        print(report.text())
        if report.measured and not options.no_save:
            saved = report.save(command=command, quick=options.quick)
            print(f"\nkept in {saved.relative_to(RESULTS.parents[1])}")
        print(f"took {time.perf_counter() - start:.0f} s")
        missed += [floor for floor in report.floors if not floor.met]
    print(f"\n{len(missed)} floors missed")
    for floor in missed:
        print(floor.line())
    return int(bool(missed) and not options.quick)


def _parser() -> argparse.ArgumentParser:
    known = "\n".join(f"  {name:12}{what}" for name, (_, _, what) in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Benchmarks of bnmc. Names (default: all):\n" + known,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", type=_known, metavar="name")
    parser.add_argument("--quick", action="store_true", help="fewer, shorter rounds; noisier")
    parser.add_argument("--only", metavar="PART", help="one part of `reliability`, by its name")
    parser.add_argument("--count", type=int, help="cases of this part")
    parser.add_argument("--seed", type=int, help="seed of its cases, an integer (2026)")
    parser.add_argument("--first", type=int, help="number of its first case (0)")
    parser.add_argument("--minutes", type=float, help="limit of its time")
    parser.add_argument("--program", help="command that tests a stream of words (RNG_test)")
    parser.add_argument("--no-save", action="store_true", help="print only, keep no JSON file")
    return parser


def _known(name: str) -> str:
    # argparse's own `choices` refuses the empty list that stands for all of them.
    if name not in BENCHMARKS:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(BENCHMARKS)}")
    return name


def _heading() -> str:
    found = machine()
    versions = ", ".join(
        f"{name} {version}" for name, version in found["versions"].items() if version
    )
    return f"{found['cpu']} ({found['llvm_cpu']}), {usable_cores()} cores\n{versions}"
