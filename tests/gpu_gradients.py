"""The same backward pass on the CPU and on a GPU, and by how much the two may differ."""

import numpy as np

import bnmc

ALL = ("delta_gram", "gram", "hidden_delta")


def on_device(chain, depth, **options):
    return bnmc.backpropagate(
        chain, depth, backend="cuda", **{"rng": 3, "observables": ALL, **options}
    )


def assert_same_to_rounding(chain, depth, **options):
    """Compare a run on the GPU with that on the CPU.

    As in `gpu_runs`: rounding of d terms of random sign, after products with matrices of order n,
    whose condition, here at most 100, multiplies it.  A layer has such sums twice, and its
    gradient depends on those of all layers above.
    """
    a = bnmc.backpropagate(chain, depth, **{"rng": 3, "observables": ALL, **options})
    b = on_device(chain, depth, **options)
    assert (a.backend, b.backend) == ("cpu", "cuda")
    assert (a.key, a.dtype, a.sampler, a.widened) == (b.key, b.dtype, b.sampler, b.widened)
    n, unit = chain.batch * (a.inputs or 1), 2.0**-23 if a.dtype == "float32" else 2.0**-52
    allowed = 100 * unit * (np.sqrt(chain.width) + 3 * n + 20) * 2 * depth
    assert np.abs(a.log_gradient_norm - b.log_gradient_norm).max() <= allowed
    for name in ALL:
        # Relative to the size of each matrix, in the unit of δ of the CPU.
        power = {"gram": 0, "hidden_delta": 1, "delta_gram": 2}[name]
        unit_of = np.exp(power * (b.log_scale - a.log_scale))[..., None, None]
        size = np.abs(a[name]).max(axis=(2, 3), keepdims=True)
        assert (np.abs(a[name] - b[name] * unit_of) <= allowed * size).all(), name
    return a, b


def assert_same_bits(a, b):
    assert a.log_gradient_norm.tobytes() == b.log_gradient_norm.tobytes()
    for name in ALL:
        assert a[name].tobytes() == b[name].tobytes()
