"""How many instructions a GPU executes for a layer, counted without a GPU.

The kernel `layers` is compiled to PTX, assembled by `ptxas` and listed by `nvdisasm` for compute
capability 9.0.  `bench.sass` then executes the listing for one chain, once through one layer and
once through two.  The difference of the counts is a layer.  The Gram matrices that result are
compared with those of the CPU, so the counted kernel computes the right numbers.

An instruction counts once for each warp that issues it, whatever number of its threads take part.
The columns count by the parts of a layer, which are the lines of the kernel that call them, and by
the most frequent instructions.  It needs `ptxas` (CUDA 12.0 or newer) on the path, and `nvdisasm`
there or from the package `nvidia-cuda-nvdisasm`.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

WIDTH, BATCH, MOST = 1000, 10, 20_051
CAPABILITY = (9, 0)
#: Where the arguments of a kernel begin in bank 0 of its constants.
ARGUMENTS = 0x210
#: How much the Gram matrices of two layers may differ from those of the CPU in float32: sums of
#: 1000 terms, and the condition of the factors, at most 100.
ALLOWED = 100 * 2 * 2.0**-23 * (np.sqrt(WIDTH) + 50)


def _tool(name: str) -> str:
    """Return the path of a tool of CUDA, or an empty string."""
    if path := shutil.which(name):
        return path
    for folder in sys.path:
        for inside in sorted(Path(folder).glob(f"nvidia/*/bin/{name}")):
            return str(inside)
    return ""


MISSING = [name for name in ("ptxas", "nvdisasm") if not _tool(name)]


@pytest.mark.skipif(
    os.environ.get("NUMBA_ENABLE_CUDASIM") == "1", reason="NUMBA_ENABLE_CUDASIM is 1"
)
@pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)}: not found")
def test_layer(turns):
    """Count the instructions of a layer of width 1000 and batch 10, in float32."""
    turns.group = f"Warp instructions of a layer ({WIDTH}, {BATCH}), float32, one chain"
    parts, names, difference, resources = turns.timed("all", count)
    total = sum(parts.values())
    turns.add("all", resources)
    turns.hold("all", "instructions", total, at_most=MOST)
    turns.hold("all", "difference of Gram matrices from the CPU's", difference, at_most=ALLOWED)
    turns.hold("all", "bytes of local memory", resources["bytes of local memory"], at_most=0)
    turns.add("all", dict(parts))
    turns.add("all", {f"{name} in all": number for name, number in names.most_common(25)})


def count() -> tuple[dict[str, int], Counter[str], float, dict[str, Any]]:
    """Return instructions by part and by name, the difference from the CPU, and resources."""
    from bench.sass.program import Program
    from bench.sass.run import run
    from bnmc import Chain, simulate

    listing, resources, threads, source = _listed()
    program = Program.of_listing(listing)
    exact = simulate(
        Chain(WIDTH, BATCH, "relu"), 2, rng=1, sampler="conditional", dtype="float32", backend="cpu"
    )
    issued, differences = [], []
    for layers in (1, 2):
        memory, place = _memory(exact.gram[0, 0], layers, exact.key)
        issued.append(run(program, memory, threads))
        gram = memory.outside[place // 4 :][: 2 * BATCH * BATCH].view(np.float64)
        expected = exact.gram[0, layers]
        differences.append(np.abs(gram.reshape(BATCH, BATCH) - expected).max())
    lines = Path(source).read_text().splitlines()
    parts: Counter[str] = Counter()
    names: Counter[str] = Counter()
    for instruction, number in zip(program.instructions, issued[1] - issued[0], strict=True):
        line = lines[int(instruction.source.rpartition(":")[2]) - 1]
        called = re.search(r"(\w+)\(", line.replace("range(", ""))
        parts[called.group(1) if called else "layers"] += int(number)
        names[".".join([instruction.name, *instruction.flags])] += int(number)
    return dict(parts.most_common()), names, max(differences), resources


def _memory(gram: Any, layers: int, key: int) -> tuple[Any, int]:
    """Return memory with the arguments of a launch, and where the Gram matrix is in it."""
    from bench.sass.state import GLOBAL_BEGIN, Memory
    from bnmc import Chain
    from bnmc.chain.compiled import spec_of

    law = spec_of(Chain(WIDTH, BATCH, "relu"))
    kinds = np.zeros(1, np.int64)
    # In the order of the kernel's arguments: State, LayerSpec, Target, slots, status, Address, the
    # layer and the step.  Numba passes the entries of tuples one by one.
    words = np.array([key], np.uint64).view(np.uint32)
    values: list[Any] = [
        np.ascontiguousarray(gram[None]), *law, np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 1, 1)),
        kinds, np.zeros((1, 1, 1)), np.full(layers, -1), np.full(1, 2**62), 0, *words, 1, 0,
    ]  # fmt: skip
    outside, constants = np.zeros(1 << 16, np.uint8), np.zeros(0x1000, np.uint8)
    at, place = ARGUMENTS, 0
    for value in values:
        entries = np.asarray(value)
        if entries.ndim:
            outside[place : place + entries.nbytes] = entries.reshape(-1).view(np.uint8)
            head = [0, 0, entries.size, entries.itemsize, GLOBAL_BEGIN + place]
            entries = np.array([*head, *entries.shape, *entries.strides], np.int64)
            place += -(-np.asarray(value).nbytes // 256) * 256
        at = -(-at // entries.itemsize) * entries.itemsize
        constants[at : at + entries.nbytes] = entries.reshape(-1).view(np.uint8)
        at += entries.nbytes
    shared = np.full(1 << 16, 0x7FC0DEAD, np.uint32)  # what nobody wrote is no number
    return Memory(shared, outside.view(np.uint32), constants.view(np.uint32)), 0


def _listed() -> tuple[str, dict[str, Any], int, str]:
    """Return the listing of the kernel, its resources, its threads and the file of its lines."""
    from bnmc._kernels.gpu.build import kernels_of
    from bnmc._kernels.gpu.layers import layers

    spec = _spec()
    kernels = kernels_of(spec)
    kernel = kernels.of(layers)
    text = _ptx(kernel)
    registers = kernel.targetoptions["max_registers"]
    arch = "sm_{}{}".format(*CAPABILITY)
    with tempfile.TemporaryDirectory() as folder:
        ptx, cubin = Path(folder) / "layers.ptx", Path(folder) / "layers.cubin"
        command = [_tool("ptxas"), "-v", "-lineinfo", f"-arch={arch}", "-maxrregcount"]
        command += [str(registers), str(ptx), "-o", str(cubin)]
        ptx.write_text(text)
        done = subprocess.run(command, capture_output=True, text=True)
        if version := re.search(r"current version is '([\d.]+)'", done.stderr):
            # PTX may be of a later version than the assembler's, and needs nothing of it.
            ptx.write_text(re.sub(r"\.version [\d.]+", f".version {version.group(1)}", text))
            done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
        listing = subprocess.run(
            [_tool("nvdisasm"), "-c", "-gi", str(cubin)], capture_output=True, text=True, check=True
        ).stdout
    # Registers that are spilled, and arrays that are not in registers.
    spilled = sum(map(int, re.findall(r"(\d+) bytes (?:spill|stack)", done.stderr)))
    used = re.search(r"Used (\d+) registers", done.stderr)
    resources = {
        "numba-cuda": importlib.metadata.version("numba-cuda"),
        "architecture": arch,
        "threads": kernels.shape.threads,
        "registers": used.group(1) if used else "?",
        "bytes of local memory": spilled,
        "bytes of shared memory": kernels.shape.bytes,
        "instructions of the kernel": len(re.findall(r"^\s*/\*[0-9a-f]{4,}\*/", listing, re.M)),
    }
    return listing, resources, kernels.shape.threads, kernel.py_func.__code__.co_filename


def _spec() -> Any:
    from bnmc._kernels.gpu.shape import Spec
    from bnmc._kernels.scalar.codes import NORM_CENTRED
    from bnmc.chain.activations import Activation, sigma_of

    digest = sigma_of(Activation.named("relu")).digest
    return Spec(BATCH, BATCH, NORM_CENTRED, False, False, "float32", digest, centred=True)


def _ptx(kernel: Any) -> str:
    """Return the PTX of the kernel `layers`, with the lines of its source."""
    from unittest import mock

    import numba.cuda.dispatcher
    from numba import typeof, types

    from bnmc import Chain
    from bnmc._kernels.gpu.arguments import Address, State, Target
    from bnmc._kernels.gpu.device import cuda
    from bnmc._kernels.scalar.codes import LayerSpec
    from bnmc.chain.compiled import spec_of

    double, whole, word = types.float64, types.int64, types.uint32

    def array(kind: Any, axes: int) -> Any:
        return types.Array(kind, axes, "C")

    def tuple_of(kind: Any, *entries: Any) -> Any:
        return types.NamedTuple(entries, kind)

    law = tuple_of(LayerSpec, *(typeof(entry) for entry in spec_of(Chain(WIDTH, BATCH))))
    nothing = types.Tuple(())
    signature = types.void(
        tuple_of(State, array(double, 3), nothing, nothing), law,
        tuple_of(Target, array(double, 4), array(double, 4), array(whole, 1), array(double, 3)),
        array(whole, 1), array(whole, 1), tuple_of(Address, whole, word, word), whole, whole,
    )  # fmt: skip
    # Device functions ask the current device for its capability.
    device = mock.Mock(compute_capability=CAPABILITY)
    with mock.patch.object(numba.cuda.dispatcher, "get_current_device", return_value=device):
        text, _ = cuda.compile_ptx(kernel.py_func, signature, cc=CAPABILITY, lineinfo=True)
    return str(text)
