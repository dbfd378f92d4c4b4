"""Digests of runs before and after a change: which results keep their bits, and which do not?

    python tests/same_bits.py record before.npz     # at the commit before
    python tests/same_bits.py compare before.npz    # at the commit after

It uses the public interface only, so that one file serves both commits.  `compare` prints, for each
run whose bits differ, the largest relative difference of each array.  `-k WORD` selects runs by
name.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import tempfile
import warnings

os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")

import numpy as np

import bnmc


def own(x):
    """A user's activation: not homogeneous, with a kink."""
    return np.maximum(x, 0.3 * x) + np.exp(-x * x)


def signs(rng, shape):
    """A user's law of weights."""
    return rng.choice([-1.0, 1.0], shape)


#: Chains by name: (positional arguments, keyword arguments) of `bnmc.Chain` or its constructors.
CHAINS = {
    "relu": lambda: bnmc.Chain(200, 6, "relu"),
    "tanh-uncentred": lambda: bnmc.Chain(70, 5, "tanh", norm="batch-uncentred"),
    "eps": lambda: bnmc.Chain(70, 5, "relu", eps=1e-3, gain=0.7),
    "skip": lambda: bnmc.Chain(70, 5, "gelu", skip=0.8),
    "residual": lambda: bnmc.Chain.bn_residual(64, 6, gamma=0.2),
    "none-tanh": lambda: bnmc.Chain(70, 5, "tanh", norm="none", gain=1.3),
    "none-relu": lambda: bnmc.Chain(70, 5, "relu", norm="none", gain=1.4),
    "none-relu-skip": lambda: bnmc.Chain(70, 5, "relu", norm="none", skip=0.9),
    "vanilla": lambda: bnmc.Chain.vanilla(50, 4),
    "own": lambda: bnmc.Chain(70, 5, own),
    "layer": lambda: bnmc.Chain(130, 5, "relu", norm="layer"),
    "rms-skip": lambda: bnmc.Chain(130, 5, "silu", norm="rms", skip=0.9),
    "group-after": lambda: bnmc.Chain(128, 4, "gelu", norm="group(4)", order="activation-norm"),
    "batch-after": lambda: bnmc.Chain(128, 4, "tanh", order="activation-norm", bias_variance=0.1),
    "resnet": lambda: bnmc.Chain.resnet(96, 5),
    "resnet-layer": lambda: bnmc.Chain.resnet(96, 5, norm="layer", bias_variance=0.05),
    "bias": lambda: bnmc.Chain(96, 5, "tanh", norm="none", bias_variance=0.05),
    "bias-uncentred": lambda: bnmc.Chain(96, 5, "tanh", norm="batch-uncentred", bias_variance=0.05),
    "conv": lambda: bnmc.Chain.conv(32, 2, "relu", shape=(3, 3), kernel=(2, 2)),
    "conv-layer": lambda: bnmc.Chain.conv(32, 2, "tanh", shape=(3, 3), kernel=(3, 1), norm="layer"),
    "haar": lambda: bnmc.Chain(40, 6, "tanh", weights="haar"),
    "haar-tight": lambda: bnmc.Chain(8, 8, "tanh", weights="haar", norm="none"),
    "haar-layer": lambda: bnmc.Chain(40, 6, "tanh", weights="haar", norm="layer"),
    "uniform": lambda: bnmc.Chain(90, 5, "relu", weights="uniform"),
    "rademacher": lambda: bnmc.Chain(90, 5, "relu", weights="rademacher", skip=0.5),
    "pytorch": lambda: bnmc.Chain(90, 5, "tanh", norm="none", weights="pytorch"),
    "pytorch-conv": lambda: bnmc.Chain(
        32, 18, "relu", norm="batch", weights="pytorch", eps=1e-5,
        convolution=bnmc.Convolution((3, 3), (2, 2)), order="activation-norm",
    ),
    "signs": lambda: bnmc.Chain(90, 5, "relu", weights=signs),
    "signs-layer": lambda: bnmc.Chain(90, 5, "relu", weights=signs, norm="layer"),
}  # fmt: skip


def _run(chain, depth=6, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bnmc.errors.PrecisionWarning)
        run = bnmc.simulate(chain, depth, **options)
    found = {f"value {name}": np.asarray(run[name]) for name in run.observables}
    found["wide"] = np.array(run.widened, np.int64)
    if run.final_state is not None:
        found |= {f"state {name}": np.array(v) for name, v in run.final_state.arrays.items()}
    return found


def _start(chain, inputs=None, seed=0):
    lead = () if inputs is None else (inputs,)
    return np.random.default_rng(seed).standard_normal((*lead, chain.width, chain.batch))


def _simulations():
    for name, chain in CHAINS.items():
        for dtype in ("float64", "float32"):
            for sampler in ("auto", "weights"):
                options = {"dtype": dtype, "sampler": sampler, "rng": 3, "chains": 3}
                yield (
                    f"simulate {name} {dtype} {sampler}",
                    lambda c=chain, o=options: _run(c(), **o),
                )
        yield (
            f"simulate {name} given, two threads",
            lambda c=chain: _run(c(), initial=_start(c()), rng=4, threads=2, depth=3),
        )
    for name in ("relu", "none-relu", "skip", "layer", "bias", "haar", "uniform"):
        chain = CHAINS[name]
        yield (
            f"simulate {name} inputs",
            lambda c=chain: _run(c(), inputs=2, initial=_start(c(), 2), rng=5, chains=2),
        )
        yield (
            f"simulate {name} moments",
            lambda c=chain: _run(c(), reduce=("chain", "layer"), rng=5, chains=4, threads=2),
        )
        yield (
            f"simulate {name} observables",
            lambda c=chain: _run(
                c(),
                observables=("orthogonality_gap", "rank_bound", "eigenvalues", "log_scale"),
                every=2,
                burn_in=1,
                rng=6,
                chains=2,
            ),
        )
        yield f"simulate {name} continued", lambda c=chain: _continued(c())
        yield f"simulate {name} store", lambda c=chain: _stored(c())
        yield f"simulate {name} wide layer", lambda c=chain: _wide(c())


def _continued(chain):
    run = bnmc.simulate(chain, 3, rng=7, chains=2)
    return _run(chain, 3, initial=run.final_state)


def _stored(chain):
    with tempfile.TemporaryDirectory() as folder:
        return _run(chain, 5, rng=8, chains=3, store=pathlib.Path(folder) / "run.zarr")


def _wide(chain):
    """A layer that threads share."""
    wide = bnmc.Chain(
        20_000, 40, chain.activation, norm=chain.norm, skip=chain.skip, weights=chain.weights,
        bias_variance=chain.bias_variance,
    )  # fmt: skip
    if not chain.is_gaussian and not chain.is_orthogonal:
        return {}
    return _run(wide, 2, rng=9, chains=1, threads=2)


def _gradient(chain, **options):
    run = bnmc.backpropagate(chain, 5, rng=3, chains=2, **options)
    found = {f"value {name}": np.asarray(v) for name, v in run.observables.items()}
    return found | {"norms": run.log_gradient_norm, "scale": run.log_scale}


def _gradients():
    for name, chain in CHAINS.items():
        for dtype in ("float64", "float32"):
            yield f"backpropagate {name} {dtype}", lambda c=chain, d=dtype: _gradient(c(), dtype=d)
        yield (
            f"backpropagate {name} weights",
            lambda c=chain: _gradient(c(), sampler="weights", observables=("delta_gram", "gram")),
        )
    for name in ("relu", "skip", "none-relu", "layer", "haar", "residual"):
        chain = CHAINS[name]
        for loss in ("cross-entropy", "squared"):
            yield (
                f"backpropagate {name} {loss}",
                lambda c=chain, o=loss: _gradient(
                    c(), loss=o, labels=np.arange(c().batch) % 3,
                    observables=("delta_gram", "gram", "hidden_delta"),
                ),
            )  # fmt: skip
        yield (
            f"tangent kernel {name}",
            lambda c=chain: {
                "kernel": np.asarray(
                    bnmc.gradients.tangent_kernel(
                        c(), 3, chains=2, initial=_start(c()), rng=1
                    ).kernels
                )
            },
        )


def _pairs():
    for name in (
        "relu", "tanh-uncentred", "none-tanh", "layer", "bias", "eps", "conv", "group-after",
    ):  # fmt: skip
        chain = CHAINS[name]
        yield (
            f"pairs {name}",
            lambda c=chain: {
                "met": np.array(bnmc.mixing.tv_bound(c(), 40, replicates=30, rng=2).meeting_times)
            },
        )
    yield (
        "expectation relu",
        lambda: {
            "value": np.array(
                bnmc.invariant.expectation(
                    CHAINS["relu"](), lambda g: g[0, 1], replicates=20, rng=1
                ).value
            )
        },
    )
    yield (
        "regularity relu",
        lambda: {"value": np.array(bnmc.regularity.constant(CHAINS["relu"](), rng=0).value)},
    )
    yield (
        "contraction relu",
        lambda: {"value": np.array(bnmc.mixing.contraction(CHAINS["relu"](), rng=0).rate)},
    )


def _all_runs(word):
    for family in (_simulations, _gradients, _pairs):
        for name, run in family():
            if word not in name:
                continue
            try:
                yield name, run()
            except (bnmc.errors.BnmcError, ValueError, TypeError) as error:
                yield name, {"error": np.array(f"{type(error).__name__}: {error}"[:200])}


def _difference(a, b):
    if a.shape != b.shape or a.dtype.kind in "US":
        return f"{a.shape} {a.dtype} and {b.shape} {b.dtype}: {str(a)[:120]} | {str(b)[:120]}"
    size = max(float(np.abs(a).max(initial=0.0)), 1e-300)
    return f"{float(np.abs(a.astype(float) - b).max(initial=0.0)) / size:.2g}"


def _main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("do", choices=("record", "compare", "list"))
    parser.add_argument("file", nargs="?")
    parser.add_argument("-k", default="")
    arguments = parser.parse_args()
    found = {}
    for name, arrays in _all_runs(arguments.k):
        if arguments.do == "list":
            print(name, {k: str(v) for k, v in arrays.items() if k == "error"})
        found |= {f"{name}|{key}": values for key, values in arrays.items()}
    if arguments.do == "record":
        np.savez_compressed(arguments.file, **found)
        print(len(found), "arrays")
    if arguments.do == "compare":
        with np.load(arguments.file) as before:
            kept = {n: before[n] for n in before.files if arguments.k in n.split("|")[0]}
        differ = 0
        for name in sorted(kept.keys() | found.keys()):
            a, b = kept.get(name), found.get(name)
            if a is None or b is None:
                print(f"{name}: only {'after' if a is None else 'before'}")
            elif a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes():
                continue
            else:
                print(f"{name}: {_difference(a, b)}")
            differ += 1
        print(f"{len(kept)} arrays, {differ} differ")


if __name__ == "__main__":
    _main()
