"""Compile GPU kernels to PTX without a GPU, in a process of its own.

`python ptx.py FOLDER few`, or `usual`, or `all`.

Numba's simulator, which the tests run in, cannot compile.  Writes FOLDER/<name>.<cc>.ptx, of each
of which the first line is a comment with the registers that a thread may have.
"""

import sys
from pathlib import Path
from unittest import mock

import numba.cuda.dispatcher
from numba import types

from bnmc._kernels.gpu.build import (
    backward_kernels_of,
    backward_orthogonal_of,
    backward_passes_of,
    kernels_of,
    orthogonal_kernels_of,
)
from bnmc._kernels.gpu.device import cuda
from bnmc._kernels.gpu.pairs import select
from bnmc._kernels.gpu.passes import cover, unfold
from bnmc._kernels.gpu.shape import DRAWN, GIVEN, KEPT, MULTIPLIED, NORMAL_BIAS, Passing, Spec
from bnmc._kernels.scalar.codes import (
    ACTIVATION_FIRST,
    NORM_CENTRED,
    NORM_FIRST,
    NORM_IN_BRANCH,
    NORM_NONE,
)
from bnmc.chain.activations import Activation
from bnmc.chain.compiled import sigma_of
from bnmc.chain.slopes import slope_of

ARRAY = {"float32": types.float32, "float64": types.float64}
BOTH = (80, 90)
#: name: (kernel, columns, dtype, source, compute capabilities).  Both dtypes and most device
#: functions are among these: `rows`, `top` and `descend` call those of `layers` and `begin`.
#: Columns are unrolled, so few of them compile faster; with two, `couple` spills a register.
#: Kernels of one spec share device functions, which compile once.
FEW = {
    "couple-3-float64": ("couple", 3, "float64", DRAWN, (90,)),
    "layers-3-float64": ("layers", 3, "float64", DRAWN, (90,)),
    "renew-3-float64": ("renew", 3, "float64", DRAWN, (90,)),
    "observe-3-float64": ("observe", 3, "float64", DRAWN, (90,)),
    "rescale-2-float32": ("rescale", 2, "float32", MULTIPLIED, (90,)),
    "cover-2-float64": ("cover", 2, "float64", DRAWN, (90,)),
    "select-2-float64": ("select", 2, "float64", DRAWN, (90,)),
    "unfold-2-float32": ("unfold", 2, "float32", MULTIPLIED, (80,)),
    "begin-2-float32-skipped": ("begin", 2, "float32", DRAWN, (90,)),
}
KERNELS = {
    "layers-10-float32": ("layers", 10, "float32", DRAWN, BOTH),
    "layers-10-float64": ("layers", 10, "float64", DRAWN, (90,)),
    "couple-10-float64": ("couple", 10, "float64", DRAWN, BOTH),
    "layers-64-float32": ("layers", 64, "float32", DRAWN, (90,)),
    "observe-10-float32": ("observe", 10, "float32", DRAWN, BOTH),
    "renew-10-float64": ("renew", 10, "float64", DRAWN, BOTH),
    "rescale-10-float32": ("rescale", 10, "float32", MULTIPLIED, BOTH),
    "layers-10-float32-scaled": ("layers", 10, "float32", DRAWN, (90,)),
    "rows-10-float32": ("rows", 10, "float32", DRAWN, BOTH),
    "rows-16-float32-weights": ("rows", 16, "float32", MULTIPLIED, BOTH),
    "rows-10-float32-given": ("rows", 10, "float32", GIVEN, BOTH),
    "moments-10-float32": ("moments", 10, "float32", DRAWN, BOTH),
    "moments-10-float32-weights": ("moments", 10, "float32", MULTIPLIED, (90,)),
    "finish-10-float32": ("finish", 10, "float32", DRAWN, BOTH),
    "finish-10-float32-kept": ("finish", 10, "float32", KEPT, (90,)),
    "frame-10-float32": ("frame", 10, "float32", DRAWN, BOTH),
    "frame-10-float64": ("frame", 10, "float64", DRAWN, (90,)),
    "framed-10-float32": ("framed", 10, "float32", DRAWN, BOTH),
    "framed-10-float64-skipped": ("framed", 10, "float64", DRAWN, (90,)),
    "top-10-float64": ("top", 10, "float64", DRAWN, BOTH),
    "begin-10-float32": ("begin", 10, "float32", DRAWN, BOTH),
    "descend-10-float32": ("descend", 10, "float32", DRAWN, BOTH),
    "mix-10-float64-skipped": ("mix", 10, "float64", DRAWN, BOTH),
    "average-10-float64-skipped": ("average", 10, "float64", DRAWN, BOTH),
    "lower-10-float64-skipped": ("lower", 10, "float64", DRAWN, BOTH),
    "lower-10-float64-first": ("lower", 10, "float64", DRAWN, (90,)),
    "lower-10-float64-branch-skipped": ("lower", 10, "float64", DRAWN, (90,)),
    "mix-10-float64-convolved": ("mix", 10, "float64", DRAWN, (90,)),
    "average-10-float64-convolved-skipped": ("average", 10, "float64", DRAWN, (90,)),
    "lower-10-float64-branch-convolved-skipped": ("lower", 10, "float64", DRAWN, (90,)),
    "orthogonalise-10-float64": ("orthogonalise", 10, "float64", DRAWN, BOTH),
    "top_orthogonal-10-float64": ("top_orthogonal", 10, "float64", DRAWN, (90,)),
    "begin_orthogonal-10-float64": ("begin_orthogonal", 10, "float64", DRAWN, BOTH),
    "descend_orthogonal-10-float64-skipped": (
        "descend_orthogonal",
        10,
        "float64",
        DRAWN,
        BOTH,
    ),
}
#: What the table of the benchmark has besides.
MORE = {
    "couple-64-float64": ("couple", 64, "float64", DRAWN, (90,)),
    "layers-64-float64": ("layers", 64, "float64", DRAWN, (90,)),
    "rows-64-float32": ("rows", 64, "float32", DRAWN, (90,)),
    "rows-16-float64-weights": ("rows", 16, "float64", MULTIPLIED, (90,)),
    "rows-64-float32-weights": ("rows", 64, "float32", MULTIPLIED, (90,)),
    "moments-10-float64": ("moments", 10, "float64", DRAWN, (90,)),
    "moments-64-float32": ("moments", 64, "float32", DRAWN, (90,)),
    "moments-16-float64-weights": ("moments", 16, "float64", MULTIPLIED, (90,)),
    "finish-10-float64": ("finish", 10, "float64", DRAWN, (90,)),
    "finish-64-float32": ("finish", 64, "float32", DRAWN, (90,)),
    "finish-16-float32-weights": ("finish", 16, "float32", MULTIPLIED, (90,)),
    "frame-64-float32": ("frame", 64, "float32", DRAWN, (90,)),
    "framed-64-float64": ("framed", 64, "float64", DRAWN, (90,)),
    "begin-10-float64-skipped": ("begin", 10, "float64", DRAWN, (90,)),
    "begin-64-float64": ("begin", 64, "float64", DRAWN, (90,)),
    "descend-10-float64-skipped": ("descend", 10, "float64", DRAWN, (90,)),
    "descend-64-float64": ("descend", 64, "float64", DRAWN, (90,)),
    "mix-64-float64": ("mix", 64, "float64", DRAWN, (90,)),
    "average-64-float64": ("average", 64, "float64", DRAWN, (90,)),
    "lower-64-float64": ("lower", 64, "float64", DRAWN, (90,)),
    "orthogonalise-64-float64": ("orthogonalise", 64, "float64", DRAWN, (90,)),
    "begin_orthogonal-64-float64": ("begin_orthogonal", 64, "float64", DRAWN, (90,)),
    "descend_orthogonal-64-float64": ("descend_orthogonal", 64, "float64", DRAWN, (90,)),
}
BACKWARD = ("top", "begin", "descend")
#: Those of layers in passes.
BACKWARD_PASSES = ("mix", "average", "lower")
#: Those of layers with orthogonal weights.
ORTHOGONAL = ("frame", "framed")
#: Those of their backward pass, by their names in `BackwardOrthogonal`.
BACKWARD_ORTHOGONAL = {
    "orthogonalise": "orthogonalise",
    "top_orthogonal": "top",
    "begin_orthogonal": "begin",
    "descend_orthogonal": "descend",
}


def signature_of_backward(kernel, dtype):
    """Types of the arguments of a kernel of the backward pass."""
    number, whole, word, double = ARRAY[dtype], types.int64, types.uint32, types.float64

    def array(kind, axes):
        return types.Array(kind, axes, "C")

    grams, state, three = array(double, 4), array(double, 4), array(double, 3)
    scales, xs, above = array(double, 2), array(number, 4), array(number, 3)
    # Sums over ranges of tiles, and the blocks that have finished.
    sums = three, array(types.int32, 1)
    results = array(double, 5), array(double, 2), array(whole, 1)
    address = (whole, whole, whole, whole, word, word)
    of_norm, neighbours = (three, three), array(whole, 2)
    if kernel == "mix":
        return types.void(
            grams, scales, three, xs, *of_norm, state, three, three, *sums, array(whole, 1), whole,
            double, double, double, whole, *address, neighbours,
        )  # fmt: skip
    if kernel == "average":
        return types.void(
            grams, scales, xs, *of_norm, above, state, three, array(double, 5), grams, sums[1],
            array(whole, 1), whole, double, double, double, double, whole, *address, neighbours,
        )  # fmt: skip
    if kernel == "lower":
        return types.void(
            grams, scales, xs, *of_norm, grams, above, state, three, *sums, *results, whole, double,
            double, double, double, double, whole, types.boolean, *address, neighbours,
        )  # fmt: skip
    if kernel == "top":
        return types.void(
            grams, scales, xs, three, above, state, *sums, *results, whole, double, double,
            types.boolean, *address,
        )  # fmt: skip
    if kernel == "begin":
        return types.void(
            grams, scales, three, xs, state, three, three, *sums, array(whole, 1), whole, double,
            double, whole, *address,
        )  # fmt: skip
    return types.void(
        grams, scales, xs, above, state, three, *sums, *results, whole, double, double, double,
        double, double, whole, types.boolean, *address,
    )  # fmt: skip


def signature_of_orthogonal(kernel):
    """Types of the arguments of a kernel of the backward pass with orthogonal weights."""
    whole, word, double = types.int64, types.uint32, types.float64

    def array(kind, axes):
        return types.Array(kind, axes, "C")

    one, two, three, four = (array(double, axes) for axes in (1, 2, 3, 4))
    sums = three, array(types.int32, 1)
    results = array(double, 5), two, array(whole, 1)
    address = (whole, whole, whole, whole, word, word)
    if kernel == "orthogonalise":
        return types.void(
            four, two, four, three, three, four, three, two, one, one, *sums, array(whole, 1),
            whole, types.boolean, whole, whole, *address,
        )  # fmt: skip
    if kernel == "top_orthogonal":
        return types.void(
            four, two, four, three, three, four, three, *sums, *results, whole, double, double,
            types.boolean, *address,
        )  # fmt: skip
    if kernel == "begin_orthogonal":
        return types.void(
            four, two, three, four, four, three, three, three, four, three, two, one, *sums,
            array(whole, 1), whole, double, double, whole, *address,
        )  # fmt: skip
    return types.void(
        four, two, four, three, four, three, three, three, two, one, *sums, *results, whole, double,
        double, double, double, double, whole, types.boolean, *address,
    )  # fmt: skip


def signature(kernel, dtype):
    """Types of the arguments of a kernel."""
    number, whole, word, double = ARRAY[dtype], types.int64, types.uint32, types.float64

    def array(kind, axes):
        return types.Array(kind, axes, "C")

    grams, record = array(double, 3), array(double, 4)
    status = array(whole, 1)
    law = (whole, double, double, double)
    recorded = (record, array(double, 4), array(whole, 1), array(double, 3))
    if kernel == "couple":
        return types.void(
            word, array(double, 4), array(double, 4), array(double, 3), array(whole, 3),
            array(double, 4), status, array(whole, 2), whole, whole, whole, whole, whole, double,
            array(double, 5), whole, array(double, 3), whole, word, word, array(whole, 2),
            array(double, 2), whole, double, double,
        )  # fmt: skip
    if kernel == "renew":
        return types.void(array(double, 4), array(double, 2))
    if kernel == "observe":
        return types.void(grams, *recorded)
    if kernel == "rescale":
        return types.void(grams, array(number, 3), array(number, 4), status, whole, whole)
    if kernel == "cover":
        return types.void(grams, array(whole, 2), double, grams)
    if kernel == "select":
        return types.void(grams, status, grams)
    if kernel == "unfold":
        return types.void(array(number, 4), whole, whole, array(whole, 2), array(number, 3))
    # The Gram matrices or covariances, x, activations, what weights of several taps multiply.
    rows = (grams, array(number, 3), array(number, 4), array(number, 3))
    of_passes = (
        status, whole, whole, double, double, double, double, double, whole, whole, whole, word,
        word,
    )  # fmt: skip
    arrived = array(types.int32, 1)
    address = (whole, whole, whole, word, word)
    if kernel == "frame":
        return types.void(
            grams, grams, grams, array(double, 1), grams, arrived, status, whole, double, double,
            whole, whole, *address,
        )  # fmt: skip
    if kernel == "framed":
        return types.void(
            grams, array(number, 3), grams, grams, arrived, *recorded, whole, status, *law, *address
        )
    if kernel == "moments":
        return types.void(*rows, record, grams, grams, arrived, *of_passes)
    if kernel == "finish":
        return types.void(grams, *rows, grams, grams, grams, arrived, *recorded, whole, *of_passes)
    if kernel == "layers":
        slots = array(whole, 1)
        return types.void(
            grams, array(number, 3), *recorded, slots, status, *law, whole, whole, word, word
        )
    return types.void(
        *rows, array(double, 3), arrived, *recorded, whole, status, *law, whole, whole, whole, word,
        word,
    )  # fmt: skip


def spec_of(kernel, columns, dtype, source, scaled):
    """Centred relu chains of one batch, or chains without norm whose scale is split off.

    Passes are those of a norm over the features after the activation, with a skip connection and,
    if weights are multiplied, a bias.
    """
    sigma, passing = sigma_of(Activation.named("relu")), None
    if kernel in ("moments", "finish"):
        bias = NORMAL_BIAS * (source == MULTIPLIED)
        passing = Passing(ACTIVATION_FIRST, NORM_NONE, True, True, bias)
    return Spec(
        columns, columns, NORM_NONE if scaled or passing else NORM_CENTRED, passing is not None,
        source in (MULTIPLIED, KEPT), dtype, sigma.digest, source, scaled=scaled, passing=passing,
    )  # fmt: skip


def backward_spec_of(columns, dtype, skipped):
    """Centred relu chains of one batch."""
    relu = Activation.named("relu")
    return Spec(
        columns, columns, NORM_CENTRED, skipped, False, dtype, sigma_of(relu).digest,
        slope=slope_of(relu).digest,
    )  # fmt: skip


def passes_spec_of(name, columns, dtype):
    """Relu chains of one batch with a norm that centres, over the features unless in a branch."""
    order, norm = ACTIVATION_FIRST, NORM_NONE
    if "first" in name:
        order = NORM_FIRST
    elif "branch" in name:
        order, norm = NORM_IN_BRANCH, NORM_CENTRED
    spec = backward_spec_of(columns, dtype, "skipped" in name)
    passing = Passing(order, norm, norm == NORM_NONE, True, is_convolved="convolved" in name)
    return spec._replace(norm=norm, passing=passing)


def built(name, kernel, columns, dtype, source):
    """Return all kernels of a spec, the bytes of shared memory, and types of the arguments."""
    if kernel in BACKWARD:
        kernels = backward_kernels_of(backward_spec_of(columns, dtype, "skipped" in name))
        return kernels, kernels.room.bytes, signature_of_backward(kernel, dtype)
    if kernel in BACKWARD_ORTHOGONAL:
        kernels = backward_orthogonal_of(backward_spec_of(columns, dtype, "skipped" in name))
        return kernels, kernels.room.bytes, signature_of_orthogonal(kernel)
    if kernel in BACKWARD_PASSES:
        kernels = backward_passes_of(passes_spec_of(name, columns, dtype))
        return kernels, kernels.room.bytes, signature_of_backward(kernel, dtype)
    if kernel in ORTHOGONAL:
        spec = spec_of(kernel, columns, dtype, source, scaled=False)
        kernels = orthogonal_kernels_of(spec._replace(skipped="skipped" in name))
        return kernels, kernels.shape.bytes, signature(kernel, dtype)
    kernels = kernels_of(
        spec_of(kernel, columns, dtype, source, "rescale" in name or "scaled" in name)
    )
    return kernels, kernels.shape.bytes, signature(kernel, dtype)


def compile_all(folder, wanted):
    """Write the PTX of kernels to files."""
    for name, (kernel, columns, dtype, source, capabilities) in wanted.items():
        compiled, size, arguments = built(name, kernel, columns, dtype, source)
        for capability in capabilities:
            cc = divmod(capability, 10)
            # Device functions ask the current device for its capability.
            device = mock.Mock(compute_capability=cc)
            with mock.patch.object(
                numba.cuda.dispatcher, "get_current_device", return_value=device
            ):
                alone = {"cover": cover, "select": select, "unfold": unfold}
                if kernel in alone:
                    function = alone[kernel]
                else:
                    function = getattr(compiled, BACKWARD_ORTHOGONAL.get(kernel, kernel))
                ptx, _ = cuda.compile_ptx(function.py_func, arguments, cc=cc)
            registers = function.targetoptions["max_registers"]
            heading = f"// registers {registers}, threads {compiled.shape.threads}, "
            heading += f"shared {size}\n"
            (Path(folder) / f"{name}.{capability}.ptx").write_text(heading + ptx)


if __name__ == "__main__":
    chosen = {"few": FEW, "usual": KERNELS, "all": {**KERNELS, **MORE}}
    compile_all(sys.argv[1], chosen[sys.argv[2]])
