"""What the library is compared with: the same chain, written by hand in other packages.

The chain is relu with batch normalization (mean and variance of each row, ddof 0):

    a = relu(x),   G = a' a / d,   x <- N(W a),   W (d, d) with independent N(0, 1/d) entries.

Every peer is a factory.  It takes a `Size` and returns a call without arguments that runs so many
layers and returns their Gram matrices, with the layer as first axis (the last one only, for peers
that a GPU replays).

*Weights* peers draw a fresh W in each layer.  The factor 1/sqrt(d) is applied to `a` (d n
products), not to W (d d products): the law is the same and the peers are faster.  *Conditional*
peers draw W a given G, as the library does (the rows of W a are independent N(0, G)): Z R with Z
(d, n - 1) standard normal and R' R = P G P, P the projector that centres.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.linalg import helmert

Peer = Callable[[], Any]


@dataclass(frozen=True)
class Size:
    """What a peer simulates: no leading axis for one chain, or one of so many chains."""

    width: int
    batch: int
    layers: int = 1
    chains: tuple[int, ...] = ()
    dtype: str = "float32"

    def normalized(self) -> Any:
        """Normalized Gaussian representations, shape (*chains, width, batch)."""
        shape = (*self.chains, self.width, self.batch)
        h = np.random.default_rng(1).standard_normal(shape, dtype=self.dtype)  # type: ignore[call-overload]
        return _normalize(np, h)

    def first_gram(self) -> Any:
        a = np.maximum(self.normalized(), 0)
        return a.mT @ a / a.dtype.type(self.width)

    def basis(self) -> Any:
        """Orthonormal basis (batch, batch - 1) of the vectors that sum to zero."""
        return helmert(self.batch).T.astype(self.dtype)


Factory = Callable[[Size], Peer]


def weights_peers() -> dict[str, Factory]:
    """Straightforward loops that draw W: what the floors are measured against."""
    peers = {"NumPy": numpy_weights, "PyTorch": torch_weights, "JAX": jax_weights}
    return {name: peer for name, peer in peers.items() if installed(name)}


def tuned_weights_peers() -> dict[str, Factory]:
    """The same loops with W drawn into one buffer, which saves the page faults of a fresh W."""
    peers: dict[str, Factory] = {
        "NumPy": partial(numpy_weights, buffer=True),
        "PyTorch": partial(torch_weights, buffer=True),
    }
    return {f"{name}, one buffer": peer for name, peer in peers.items() if installed(name)}


def conditional_peers() -> dict[str, Factory]:
    """The conditional sampler, for many chains at once: so vectorized code is at its best."""
    peers = {"NumPy": numpy_conditional, "JAX": jax_conditional}
    return {name: peer for name, peer in peers.items() if installed(name)}


def installed(name: str) -> bool:
    """Whether a package is there."""
    package = {"PyTorch": "torch", "CuPy": "cupy"}.get(name, name.lower())
    return importlib.util.find_spec(package) is not None


def on_gpu(name: str) -> bool:
    """Whether a package is there, in a build that uses the GPU."""
    if not installed(name):
        return False
    if name == "PyTorch":
        import torch

        return bool(torch.cuda.is_available())
    if name == "JAX":
        # It would take most of the memory for itself.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        import jax

        return bool(jax.default_backend() == "gpu")
    return True


# --- NumPy and CuPy -----------------------------------------------------------------------------


def numpy_weights(size: Size, *, buffer: bool = False, xp: Any = np) -> Peer:
    """NumPy, or CuPy: Generator.standard_normal, one matrix product a layer."""
    rng = xp.random.default_rng(0)
    d = size.width
    initial, shape = xp.asarray(size.normalized()), (*size.chains, d, d)
    scale = initial.dtype.type(d**-0.5)
    out = {"out": xp.empty(shape, initial.dtype)} if buffer else {}

    def run() -> Any:
        grams = []
        x = initial
        for _ in range(size.layers):
            a = xp.maximum(x, 0) * scale
            grams.append(a.swapaxes(-1, -2) @ a)
            x = _normalize(xp, rng.standard_normal(shape, dtype=initial.dtype, **out) @ a)
        return xp.stack(grams)

    return run


def numpy_conditional(size: Size) -> Peer:
    """The conditional sampler in NumPy, all chains in one array."""
    rng = np.random.Generator(np.random.SFC64(0))  # NumPy's fastest
    basis, initial, scale = size.basis(), size.first_gram(), np.float32(size.width)
    z = np.empty((*size.chains, size.width, size.batch - 1), np.float32)

    def run() -> Any:
        grams = []
        gram = initial
        for _ in range(size.layers):
            grams.append(gram)
            factor = np.linalg.cholesky(basis.T @ gram @ basis)
            rng.standard_normal(dtype=np.float32, out=z)
            h = z @ (factor.mT @ basis.T)
            # The rows of h are centred already, and their scale commutes with relu.
            h /= np.sqrt(np.einsum("...ri,...ri->...r", h, h) / np.float32(size.batch))[..., None]
            np.maximum(h, 0, out=h)
            gram = h.mT @ h / scale
        return np.stack(grams)

    return run


def _normalize(xp: Any, h: Any) -> Any:
    h = h - h.mean(axis=-1, keepdims=True)
    h /= xp.sqrt((h * h).mean(axis=-1, keepdims=True))
    return h


# --- PyTorch ------------------------------------------------------------------------------------


def torch_weights(size: Size, *, buffer: bool = False, device: str = "cpu") -> Peer:
    """PyTorch: torch.randn, one matrix product a layer, no gradients."""
    import torch

    x = torch.from_numpy(size.normalized()).to(device)
    d, options = size.width, {"dtype": x.dtype, "device": device}
    shape = (*size.chains, d, d)
    out = {"out": torch.empty(shape, **options)} if buffer else {}

    def step(x: Any) -> tuple[Any, Any]:
        a = torch.relu(x) * d**-0.5
        h = torch.randn(shape, **options, **out) @ a
        variance, mean = torch.var_mean(h, dim=-1, correction=0, keepdim=True)
        return (h - mean) * torch.rsqrt(variance), a.mT @ a

    return _torch_run(torch, step, x, size.layers)


def torch_conditional(size: Size, *, device: str = "cpu") -> Peer:
    """The conditional sampler in PyTorch."""
    import torch

    gram, basis = (torch.from_numpy(each).to(device) for each in (size.first_gram(), size.basis()))
    z = torch.empty(*size.chains, size.width, size.batch - 1, dtype=gram.dtype, device=device)

    def step(gram: Any) -> tuple[Any, Any]:
        factor, _ = torch.linalg.cholesky_ex(basis.mT @ gram @ basis)
        h = torch.randn(z.shape, out=z) @ (factor.mT @ basis.mT)
        a = torch.relu(h * torch.rsqrt((h * h).mean(dim=-1, keepdim=True)))
        return a.mT @ a / size.width, gram

    return _torch_run(torch, step, gram, size.layers)


def _torch_run(torch: Any, step: Callable[[Any], tuple[Any, Any]], state: Any, layers: int) -> Peer:
    """Return a call of so many steps; on a GPU, replays of a graph of one."""

    def run() -> Any:
        with torch.no_grad():
            x, grams = state, []
            for _ in range(layers):
                x, gram = step(x)
                grams.append(gram)
            return torch.stack(grams)

    if state.device.type == "cpu":
        return run
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.stream(side):
        for _ in range(3):
            state.copy_(step(state)[0])
    torch.cuda.synchronize()
    with torch.no_grad(), torch.cuda.graph(graph):
        following, gram = step(state)
        state.copy_(following)

    def replay() -> Any:
        for _ in range(layers):
            graph.replay()
        return gram[None]

    return replay


# --- JAX ----------------------------------------------------------------------------------------


def jax_weights(size: Size, *, device: str = "cpu") -> Peer:
    """JAX: jit around lax.scan, jax.random.normal with the default generator."""
    import jax

    d, shape = size.width, (*size.chains, size.width, size.width)

    def layer(x: Any, key: Any) -> tuple[Any, Any]:
        a = jax.nn.relu(x) * d**-0.5
        h = jax.random.normal(key, shape, x.dtype) @ a
        h = h - h.mean(axis=-1, keepdims=True)
        return h * jax.lax.rsqrt((h * h).mean(axis=-1, keepdims=True)), a.mT @ a

    return _jax_run(jax, layer, size, size.normalized(), device)


def jax_conditional(size: Size, *, device: str = "cpu") -> Peer:
    """The conditional sampler in JAX."""
    import jax

    basis, shape = size.basis(), (*size.chains, size.width, size.batch - 1)

    def layer(gram: Any, key: Any) -> tuple[Any, Any]:
        factor = jax.numpy.linalg.cholesky(basis.T @ gram @ basis)
        h = jax.random.normal(key, shape, gram.dtype) @ (factor.mT @ basis.T)
        a = jax.nn.relu(h * jax.lax.rsqrt((h * h).mean(axis=-1, keepdims=True)))
        return a.mT @ a / size.width, gram

    return _jax_run(jax, layer, size, size.first_gram(), device)


def _jax_run(
    jax: Any, layer: Callable[[Any, Any], Any], size: Size, initial: Any, device: str
) -> Peer:
    """Return a call that scans over layers, with a new key each time, as a simulation would."""

    @jax.jit
    def scan(state: Any, key: Any) -> Any:
        # With the last state: XLA would leave out a single layer whose result nobody reads.
        return jax.lax.scan(layer, state, jax.random.split(key, size.layers))

    place = jax.devices("gpu" if device == "cuda" else device)[0]
    with jax.enable_x64(size.dtype == "float64"):
        initial, key = jax.device_put((initial, jax.random.key(0)), place)

    def run() -> Any:
        nonlocal key
        # Products of 10 bits, JAX's default on a GPU, would not be this law.
        with jax.enable_x64(size.dtype == "float64"), jax.default_matmul_precision("float32"):
            key, use = jax.random.split(key)
            return jax.block_until_ready(scan(initial, use))[1]

    return run


# --- checks -------------------------------------------------------------------------------------


def verify(peer: Peer, batch: int) -> None:
    """Raise unless the Gram matrices of a peer are those of the chain.

    By the symmetry h -> -h the mean diagonal of G is 1/2 in expectation at every width and in
    every layer; the mean off-diagonal entry is J(-1/(n-1))/2 + O(1/d) with
    J(x) = (sqrt(1 - x^2) + (pi - arccos x) x)/pi.
    """
    grams = np.asarray(peer(), dtype=np.float64)[1:]
    diagonal = np.trace(grams, axis1=-2, axis2=-1).ravel() / batch
    error = abs(diagonal.mean() - 0.5)
    if not error <= 6 * diagonal.std() / np.sqrt(diagonal.size):
        raise AssertionError(f"mean diagonal of G is {diagonal.mean()}, not 1/2")
    rho = -1 / (batch - 1)
    limit = (np.sqrt(1 - rho**2) + (np.pi - np.arccos(rho)) * rho) / np.pi / 2
    total = grams[len(grams) // 2 :].sum(axis=(-2, -1)).mean()
    entry = (total - batch * diagonal.mean()) / (batch * (batch - 1))
    if not abs(entry / limit - 1) < 0.05:
        raise AssertionError(f"mean off-diagonal entry of G is {entry}, not {limit}")
