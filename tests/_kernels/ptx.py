"""Compile GPU kernels to PTX without a GPU, in a process of its own.

`python ptx.py FOLDER few`, or `usual`, or `all`.

Numba's simulator, which the tests run in, cannot compile.  Writes FOLDER/<name>.<cc>.ptx, of each
of which the first line is a comment with the registers that a thread may have.
"""

import gc
import sys
from pathlib import Path
from unittest import mock

import numba.cuda.dispatcher
from numba import typeof, types

from bnmc._kernels.gpu import arguments, backward, gram, layers, pairs, passes
from bnmc._kernels.gpu.build import kernels_of
from bnmc._kernels.gpu.device import cuda
from bnmc._kernels.gpu.pairs import PairRecord, Pairs, PairSpan, PairWork
from bnmc._kernels.gpu.shape import DRAWN, GIVEN, KEPT, MULTIPLIED, NORMAL_BIAS, Spec
from bnmc._kernels.scalar.codes import (
    ACTIVATION_FIRST,
    NORM_CENTRED,
    NORM_FIRST,
    NORM_IN_BRANCH,
    NORM_NONE,
    LayerSpec,
)
from bnmc.chain.activations import Activation, sigma_of, slope_of
from bnmc.chain.chain import Chain
from bnmc.chain.compiled import spec_of

ARRAY = {"float32": types.float32, "float64": types.float64}


def names(text):
    return text.split()


#: Names of kernels: function, columns and dtype, then the properties of the layer.  Both dtypes and
#: the device functions of the forward pass are among these: `rows` calls those of `layers`, and so
#: does `couple`, which takes 12 s.  The backward pass compiles with the slow tests.  Columns are
#: unrolled, so few of them compile faster.  Kernels of one spec share device functions, which
#: compile once.
FEW = names("""
    layers-3-float64 renew-3-float64 observe-3-float64 rescale-2-float32
    cover-2-float64 unfold-2-float32
""")
#: Those that are compiled for an older device too.
OLDER = names("""
    unfold-2-float32
    layers-10-float32 couple-10-float64 observe-10-float32 renew-10-float64 rescale-10-float32
    rows-10-float32 rows-16-float32-weights rows-10-float32-given moments-10-float32
    finish-10-float32 frame-10-float32 framed-10-float32 top-10-float64 begin-10-float32
    descend-10-float32 mix-10-float64-skipped average-10-float64-skipped lower-10-float64-skipped
    orthogonalise-10-float64 begin_orthogonal-10-float64 descend_orthogonal-10-float64-skipped
""")
KERNELS = [
    *OLDER[1:],
    *names("""
    layers-10-float64 couple-10-float64-covered layers-64-float32 layers-10-float32-scaled
    moments-10-float32-weights finish-10-float32-kept frame-10-float64 framed-10-float64-skipped
    lower-10-float64-first lower-10-float64-branch-skipped mix-10-float64-convolved
    average-10-float64-convolved-skipped lower-10-float64-branch-convolved-skipped
    top_orthogonal-10-float64
    """),
]
#: What the table of the benchmark has besides.
MORE = names("""
    couple-64-float64 layers-64-float64 rows-64-float32 rows-16-float64-weights
    rows-64-float32-weights moments-10-float64 moments-64-float32 moments-16-float64-weights
    finish-10-float64 finish-64-float32 finish-16-float32-weights frame-64-float32
    framed-64-float64 begin-10-float64-skipped begin-64-float64 descend-10-float64-skipped
    descend-64-float64 mix-64-float64 average-64-float64 lower-64-float64 orthogonalise-64-float64
    begin_orthogonal-64-float64 descend_orthogonal-64-float64
""")
SOURCES = {"weights": MULTIPLIED, "given": GIVEN, "kept": KEPT}
BACKWARD = ("top", "begin", "descend")
#: Those of layers in passes.
BACKWARD_PASSES = ("mix", "average", "lower")
#: Those of layers with orthogonal weights.
ORTHOGONAL = ("frame", "framed")
#: Those of their backward pass.
BACKWARD_ORTHOGONAL = (
    "orthogonalise", "top_orthogonal", "begin_orthogonal", "descend_orthogonal",
)  # fmt: skip
#: Those that are compiled for no shape.
ALONE = ("cover", "unfold")
#: All kernels; `rows` ends layers in passes, "finish", and those with orthogonal weights, "framed".
FUNCTIONS = {
    name: getattr(module, name)
    for module, names in (
        (layers, ("layers", "rows", "frame")),
        (passes, ("moments", "cover", "unfold")),
        (pairs, ("couple", "renew")),
        (gram, ("observe", "rescale")),
        (backward, (*BACKWARD, "average", "orthogonalise")),
    )
    for name in names
}
FUNCTIONS |= {"finish": layers.rows, "framed": layers.rows}
#: The same of layers in passes, and of those with orthogonal weights.
FUNCTIONS |= {"mix": backward.begin, "lower": backward.descend}
FUNCTIONS |= {f"{name}_orthogonal": getattr(backward, name) for name in BACKWARD}


def tuple_of(kind, *entries):
    """Return the type of a NamedTuple."""
    return types.NamedTuple(entries, kind)


NOTHING = types.Tuple(())
WHOLE, WORD, DOUBLE, YES = types.int64, types.uint32, types.float64, types.boolean


def array(kind, axes):
    return types.Array(kind, axes, "C")


GRAMS, STATUS = array(DOUBLE, 3), array(WHOLE, 1)
LAW = tuple_of(LayerSpec, *map(typeof, spec_of(Chain(4, 2))))
TARGET = tuple_of(arguments.Target, array(DOUBLE, 4), array(DOUBLE, 4), STATUS, GRAMS)
WORK = tuple_of(arguments.Work, STATUS, array(types.int32, 1), GRAMS)
ADDRESS = tuple_of(arguments.Address, WHOLE, WORD, WORD)
STEP = (WHOLE, WHOLE, WHOLE)  # slot, layer, step


def signature(kernel, spec):
    """Types of the arguments of a kernel."""
    number = ARRAY[spec.dtype]
    state = tuple_of(
        arguments.State,
        GRAMS,
        array(number, 3) if spec.skipped else NOTHING,
        array(number, 4) if spec.keeps_rows else NOTHING,
    )
    if kernel == "couple":
        four = array(DOUBLE, 4)
        return types.void(
            tuple_of(Pairs, four, STATUS, array(WHOLE, 2), array(WHOLE, 2)),
            tuple_of(PairWork, array(WHOLE, 2), four, GRAMS, array(WHOLE, 3), four),
            tuple_of(PairRecord, array(DOUBLE, 5), WHOLE, GRAMS, WHOLE),
            LAW, ADDRESS, WORD, tuple_of(PairSpan, WHOLE, WHOLE, WHOLE, WHOLE, DOUBLE),
        )  # fmt: skip
    if kernel == "renew":
        return types.void(array(DOUBLE, 4), array(DOUBLE, 2))
    if kernel == "observe":
        return types.void(GRAMS, TARGET)
    if kernel == "rescale":
        return types.void(state, WHOLE, STATUS, *STEP)
    if kernel == "cover":
        return types.void(GRAMS, array(WHOLE, 2), DOUBLE, GRAMS, *STEP)
    if kernel == "unfold":
        return types.void(array(number, 4), WHOLE, array(WHOLE, 2), array(number, 3), *STEP)
    if kernel == "layers":
        return types.void(state, LAW, TARGET, STATUS, STATUS, ADDRESS, WHOLE, WHOLE)
    of = array(number, 3) if spec.source == GIVEN else NOTHING
    if spec.in_passes:
        of = tuple_of(arguments.Passes, GRAMS, NOTHING, array(DOUBLE, 4), GRAMS, GRAMS)
    if spec.is_orthogonal:
        of = tuple_of(arguments.Frames, GRAMS, GRAMS, array(DOUBLE, 1))
    if kernel == "moments":
        return types.void(state, of, LAW, WORK, ADDRESS, *STEP)
    if kernel == "frame":
        return types.void(state, of, WHOLE, WHOLE, LAW, WORK, ADDRESS, *STEP)
    return types.void(state, of, LAW, TARGET, WORK, ADDRESS, *STEP)


def signature_of_backward(kernel, spec):
    """Types of the arguments of a kernel of the backward pass."""
    number, four, two = ARRAY[spec.dtype], array(DOUBLE, 4), array(DOUBLE, 2)
    xs = array(number, 4) if spec.skipped else NOTHING
    above = array(number, 3) if spec.skipped else NOTHING
    given = GRAMS if kernel.startswith("top") else NOTHING
    extra = NOTHING
    if spec.in_passes:
        standard = [NOTHING] * 4
        if spec.over_features:
            standard = [GRAMS, GRAMS, four, array(DOUBLE, 5)]
        taps = array(WHOLE, 2) if spec.is_convolved else NOTHING
        extra = tuple_of(arguments.Standards, *standard, taps, taps)
    if spec.is_orthogonal:
        ones = array(DOUBLE, 1)
        extra = tuple_of(arguments.Noise, GRAMS, four, GRAMS, two, ones, ones, WHOLE, YES)
    return types.void(
        tuple_of(arguments.Layers, four, two, GRAMS, xs),
        tuple_of(arguments.Descents, given, above, four, GRAMS, GRAMS, array(DOUBLE, 5), two),
        extra, tuple_of(arguments.Numbers, LAW, DOUBLE, DOUBLE, YES), WORK, ADDRESS, WHOLE, *STEP,
    )  # fmt: skip


def spec_of(kernel, columns, dtype, source, scaled):
    """Centred relu chains of one batch, or chains without norm whose scale is split off.

    Passes are those of a norm over the features after the activation, with a skip connection and,
    if weights are multiplied, a bias.
    """
    sigma, in_passes = sigma_of(Activation.named("relu")), kernel in ("moments", "finish")
    spec = Spec(
        columns, columns, NORM_NONE if scaled or in_passes else NORM_CENTRED, in_passes,
        source in (MULTIPLIED, KEPT), dtype, sigma.digest, source, scaled=scaled,
        centred=not scaled and not in_passes,
    )  # fmt: skip
    if not in_passes:
        return spec
    bias = NORMAL_BIAS * (source == MULTIPLIED)
    return spec._replace(
        in_passes=True, order=ACTIVATION_FIRST, over_features=True, features_centred=True, bias=bias
    )


def backward_spec_of(columns, dtype, skipped):
    """Centred relu chains of one batch."""
    relu = Activation.named("relu")
    return Spec(
        columns, columns, NORM_CENTRED, skipped, False, dtype, sigma_of(relu).digest,
        slope=slope_of(relu).digest, centred=True,
    )  # fmt: skip


def passes_spec_of(properties, columns, dtype):
    """Relu chains of one batch with a norm that centres, over the features unless in a branch."""
    order, norm = ACTIVATION_FIRST, NORM_NONE
    if "first" in properties:
        order = NORM_FIRST
    elif "branch" in properties:
        order, norm = NORM_IN_BRANCH, NORM_CENTRED
    spec = backward_spec_of(columns, dtype, "skipped" in properties)
    return spec._replace(
        norm=norm, centred=norm == NORM_CENTRED, over_features=norm == NORM_NONE, order=order,
        features_centred=True, in_passes=True, is_convolved="convolved" in properties,
    )  # fmt: skip


def built(name):
    """Return the kernels of a spec, the kernel itself, and types of the arguments."""
    kernel, columns, dtype, *properties = name.split("-")
    columns, skipped = int(columns), "skipped" in properties
    if kernel in BACKWARD or kernel in BACKWARD_ORTHOGONAL or kernel in BACKWARD_PASSES:
        spec = backward_spec_of(columns, dtype, skipped)
        if kernel in BACKWARD_PASSES:
            spec = passes_spec_of(properties, columns, dtype)
        spec = spec._replace(is_orthogonal=kernel in BACKWARD_ORTHOGONAL)
        kernels = kernels_of(spec)
        return kernels, kernels.of(FUNCTIONS[kernel]), signature_of_backward(kernel, spec)
    source = MULTIPLIED if kernel in ("rescale", "unfold") else DRAWN
    source = next((SOURCES[each] for each in properties if each in SOURCES), source)
    scaled = kernel == "rescale" or "scaled" in properties
    spec = spec_of(kernel, columns, dtype, source, scaled)._replace(covered="covered" in properties)
    if kernel in ORTHOGONAL:
        spec = spec._replace(skipped=skipped, is_orthogonal=True)
    kernels, function = kernels_of(spec), FUNCTIONS[kernel]
    if kernel not in ALONE:
        function = kernels.of(function)
    return kernels, function, signature(kernel, spec)


def compile_all(folder, wanted):
    """Write the PTX of kernels to files."""
    for name in wanted:
        kernels, function, argument_types = built(name)
        for cc in [(8, 0), (9, 0)] if name in OLDER else [(9, 0)]:
            # Device functions ask the current device for its capability.
            device = mock.Mock(compute_capability=cc)
            with mock.patch.object(
                numba.cuda.dispatcher, "get_current_device", return_value=device
            ):
                ptx, _ = cuda.compile_ptx(function.py_func, argument_types, cc=cc)
            registers = function.targetoptions["max_registers"]
            heading = f"// registers {registers}, threads {kernels.shape.threads}, "
            heading += f"shared {kernels.bytes}\n"
            (Path(folder) / f"{name}.{cc[0]}{cc[1]}.ptx").write_text(heading + ptx)


if __name__ == "__main__":
    gc.disable()  # searching the compiler's objects takes a seventh of the time
    chosen = {"few": FEW, "usual": KERNELS, "all": KERNELS + MORE}
    compile_all(sys.argv[1], chosen[sys.argv[2]])
